"""The common base of methods: the class Method, its parameters, requests and jobs, and rounds common to several papers.

`registry` and `vocabulary` list the installed methods and what they use; `brought_code` handles errors of foreign ones.
May import what `edge_sdk.methods` may import.
"""
