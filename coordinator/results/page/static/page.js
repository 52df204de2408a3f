"use strict";
/* Keeps the state of the run, takes what the server sends, and shows the view that the address names. */

const run = {
  head: {}, round: {}, devices: new Map(), history: [], ledger: {}, missed: [], deviceColumns: [], roundColumns: [], deviceFacts: [], roundFacts: [], heardAt: 0,
  /* The run's clock: it goes on between two states where it is a real one. */
  now() { return this.head.clock === "wall" ? this.head.now_s + (performance.now() - this.heardAt) / 1000 : this.head.now_s; },
};
const VIEWS = { fleet: new FleetView(), round: new RoundView(), learning: new LearningView(), ledger: new LedgerView() };
const element = (id) => document.getElementById(id);
let view = null, waiting = false, ended = false;

function named(columns, values) { return Object.fromEntries(columns.map((name, place) => [name, values[place]])); }

function take(found, whole) {
  if (whole) {
    run.deviceColumns = found.device_columns;
    run.roundColumns = found.round_columns;
    run.deviceFacts = found.device_facts;
    run.roundFacts = found.round_facts;
    run.devices.clear();
    run.history = [];
  }
  if (found.head.now_s !== undefined) run.heardAt = performance.now();
  tell(run.head, found.head);
  run.head = found.head;
  if (found.round) run.round = found.round;
  if (found.ledger) run.ledger = found.ledger;
  if (found.missed) run.missed = found.missed.map(([round, exchange, device, why]) => ({ round, exchange, device, why }));
  for (const values of found.devices) { const row = named(run.deviceColumns, values); run.devices.set(row.id, row); }
  for (const id of found.gone || []) run.devices.delete(id);
  for (const [place, values] of Object.entries(found.history)) run.history[place] = named(run.roundColumns, values);
  later();
}

/* Tell a screen reader what has changed, once a round and not once a second. */
function tell(before, after) {
  if (before.state === undefined) return;
  if (before.state !== after.state) setText(element("said"), after.text);
  else if (before.round !== after.round) setText(element("said"), "Round " + after.round + " is done, accuracy " + format.percent(after.accuracy));
}

function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; show(); });
}

function show() {
  const head = run.head;
  document.title = (head.federation || "edge-sdk") + (head.rounds ? ": round " + ofRounds(head.round, head.rounds) : "");
  setText(element("federation"), head.federation || "edge-sdk");
  setText(element("method"), [head.method, head.part && "devices " + head.part, head.seed !== undefined && "seed " + head.seed].filter(Boolean).join(", "));
  setState(element("state"), head.state);
  setText(element("text"), [head.text, head.uplift].filter(Boolean).join("; "));
  const bar = element("bar");
  bar.hidden = head.rounds === FOREVER;
  bar.setAttribute("aria-valuemax", head.rounds || 1);
  bar.setAttribute("aria-valuenow", head.round || 0);
  bar.firstElementChild.style.width = (100 * (head.round || 0)) / (head.rounds || 1) + "%";
  setFigures(element("figures"), [
    ["Rounds done", head.rounds === undefined ? UNKNOWN : ofRounds(head.round || 0, head.rounds)],
    ["Devices here", head.expected === undefined ? UNKNOWN : head.here + " of " + head.expected],
    ["Accuracy, mean", format.percent(head.accuracy)],
    ["Sent by devices", format.bytes(head.bytes_up)],
    ["Sent to devices", format.bytes(head.bytes_down)],
  ]);
  if (view) view.show(run);
}

function choose(moved) {
  const [name, id] = location.hash.slice(1).split("/");
  if (name === "view") { element("view").focus(); return; }
  view = name === "device" && id ? new DeviceView(decodeURIComponent(id)) : VIEWS[name] || VIEWS.fleet;
  const heading = make("h2", { tabindex: "-1" }, view.title);
  element("view").replaceChildren(heading, view.element);
  for (const each of document.querySelectorAll("nav a")) {
    const here = each.hash === "#" + (name in VIEWS ? name : "fleet");
    if (here) each.setAttribute("aria-current", "page"); else each.removeAttribute("aria-current");
  }
  if (moved) heading.focus();
  show();
  for (const plot of view.plots ? view.plots() : []) plot.redraw();
}

function connect() {
  const events = new EventSource("events");
  const heard = (whole) => (event) => {
    setText(element("link"), "Connected.");
    take(JSON.parse(event.data), whole);
  };
  events.addEventListener("state", heard(true));
  events.addEventListener("change", heard(false));
  events.addEventListener("over", () => {
    ended = true;
    events.close();
    setText(element("link"), "The page's server has ended. To see the run again: edge-sdk page " + (run.head.where || "RUN_DIR"));
  });
  events.addEventListener("error", () => {
    if (ended) return;
    if (events.readyState === EventSource.CLOSED) tellRefusal();
    else setText(element("link"), "The connection is lost; trying again. The figures may be old.");
  });
}

/* A browser gives up where the server answers with an error: say which, as the server words it. */
async function tellRefusal() {
  let line = "The page's server does not answer.";
  try {
    const answer = await fetch("state");
    line = answer.ok ? "The page's server refused this browser for a moment." : (await answer.text()).trim();
  } catch { /* it has gone away meanwhile */ }
  setText(element("link"), line + " The figures are old; reload this page to try again.");
}

window.addEventListener("hashchange", () => choose(true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const plot of view.plots ? view.plots() : []) plot.redraw(); });
setInterval(() => { if (run.head.clock === "wall" && view && !document.hidden) view.show(run); }, 1000);
choose(false);
connect();
