"""The live page: a run seen in a browser, during or after it.

values, folder, live: what the page shows.  feed: hands it from the run's thread to the page's.  address, guard: who may
reach it.  starlette_app, uvicorn_server: HTTP.  static: the page, with its plotting library.
May import `record`, `report` and what both sides agree on, never `serving`; only commands, deploy and runs import this.
"""
