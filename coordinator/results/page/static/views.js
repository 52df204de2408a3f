"use strict";
/* The views.  Each is made once, and its `show(run)` updates it in place; run: what page.js keeps of the state. */

const rows = (run) => [...run.devices.values()];
const link = (id) => "#device/" + encodeURIComponent(id);

class FleetView {
  constructor() {
    this.title = "Fleet";
    this.word = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    this.choice = make("select", {}, make("option", { value: "" }, "all states"));
    this.count = make("p", { class: "soft" });
    const again = () => this.run && this.show(this.run);
    this.word.addEventListener("input", again);
    this.choice.addEventListener("change", again);
    const column = (name, key, text, more = {}) => ({ name, key: (row) => row[key], text: (row) => text(row[key]), ...more });
    this.table = new LiveTable("Devices", [
      column("Device", "id", format.text, { link: (row) => link(row.id) }),
      column("State", "state", format.text, { state: true }),
      column("Round", "round", format.text, { number: true }),
      column("Accuracy", "accuracy", format.percent, { number: true }),
      { name: "Temperature", key: (row) => (row.temperature_c === null ? row.heat : row.temperature_c), text: format.heat, number: true, wide: true },
      column("Board", "board", format.text, { wide: true }),
      column("Link", "link", format.text, { wide: true }),
      column("edge-sdk", "version", format.text, { wide: true }),
      { name: "Last heard", key: (row) => (row.seen_s === null ? null : -row.seen_s), text: (row) => this.heard(row), number: true },
      column("Why it is not training", "why", (value) => value || "", { why: true }),
    ], (row) => row.id);
    this.element = make("div", {},
      make("div", { class: "tools" }, make("label", {}, "Find a device or a board", this.word), make("label", {}, "State", this.choice)),
      this.count, this.table.element);
  }
  heard(row) { return row.seen_s === null ? UNKNOWN : format.ago(this.run.now() - row.seen_s); }
  show(run) {
    this.run = run;
    const all = rows(run), counts = new Map();
    for (const row of all) counts.set(row.state, (counts.get(row.state) || 0) + 1);
    const kinds = [...counts.keys()].sort().join("|");
    if (this.kinds !== kinds) {
      this.kinds = kinds;
      const kept = this.choice.value;
      this.choice.replaceChildren(make("option", { value: "" }, "all states"), ...[...counts.keys()].sort().map((word) => make("option", { value: word }, word)));
      this.choice.value = counts.has(kept) ? kept : "";
    }
    const words = [...counts].sort((a, b) => b[1] - a[1]).map(([word, count]) => count + " " + word).join(", ");
    const unlisted = run.head.unlisted || 0;
    const more = unlisted ? "Listed are " + all.length + " of " + (all.length + unlisted) + " devices, those of the open exchange and those with most bytes: " : "";
    setText(this.count, words ? more + words : "No device is known yet.");
    const wanted = this.word.value.trim().toLowerCase(), state = this.choice.value;
    this.table.show(all.filter((row) => (!state || row.state === state) && (!wanted || (row.id + " " + (row.board || "")).toLowerCase().includes(wanted))));
  }
}

/* Buttons that command the run; hidden where the page may not. */
class Orders {
  constructor(operations, device = null) {
    this.device = device;
    this.said = make("p", { role: "status" });
    const buttons = operations.map(([operation, text]) => {
      const button = make("button", { type: "button", class: "order" }, text);
      button.addEventListener("click", () => this.give(operation, text));
      return button;
    });
    this.element = make("section", { "aria-label": "Commands", hidden: "" }, make("div", { class: "tools" }, ...buttons), this.said);
  }
  show(run) { this.element.hidden = !run.head.controls; }
  async give(operation, text) {
    if (operation === "drain" && !confirm(text.split(":")[0] + " " + (this.device || "the whole run") + "?")) return;
    setText(this.said, "Sent, waiting for the run.");
    try {
      const answer = await fetch("command", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ operation, device: this.device }) });
      setText(this.said, (await answer.text()).trim());
    } catch { setText(this.said, "The page's server cannot be reached."); }
  }
}

/* Accuracy against rounds, of one device or of many; asked for when it is shown and a round is done. */
class Curves {
  constructor(title, device = null) {
    Object.assign(this, { title, device, asked: -1, empty: true, plot: null, names: "" });
    this.note = make("p", { class: "soft" });
    this.element = make("section", { hidden: "" });
  }
  async show(run) {
    const done = run.history.length + "/" + run.head.accuracy_round + "/" + run.head.accuracy;
    if (done === this.asked) return;
    this.asked = done;
    try {
      const answer = await fetch("curves" + (this.device ? "?device=" + encodeURIComponent(this.device) : ""));
      if (answer.ok) this.draw(await answer.json());
    } catch { this.asked = -1; }
  }
  draw(found) {
    const names = Object.keys(found.devices);
    this.empty = !found.rounds.length || !names.length;
    this.element.hidden = this.empty;
    if (this.empty) return;
    if (this.names !== names.join()) {
      this.names = names.join();
      this.plot = new Plot(this.title, names, AXES.rounds, { name: "accuracy", text: format.percent }, { thin: names.length > 4 });
      this.element.replaceChildren(this.plot.element, this.note);
    }
    setText(this.note, found.of > names.length && !this.device ? "The first " + names.length + " of " + found.of + " devices; each device's page has its own." : "");
    this.plot.show([found.rounds, ...names.map((name) => found.devices[name])]);
  }
}

class RoundView {
  constructor() {
    this.title = "Round";
    this.orders = new Orders([["drain", "Drain: finish the round, then stop the run"], ["resume", "Go on: the run does not stop"]]);
    this.line = make("p");
    this.figures = make("dl", { class: "figures" });
    this.fill = make("div");
    this.mark = make("div", { class: "mark" });
    this.mark.style.height = "100%";
    this.bar = make("div", { class: "bar", role: "progressbar", "aria-label": "Answers that are here", "aria-valuemin": "0" }, this.fill, this.mark);
    this.awaited = new LiveTable("Devices that are awaited", [
      { name: "Device", key: (row) => row.id, text: (row) => row.id, link: (row) => link(row.id) },
      { name: "Last heard", key: (row) => (row.seen_s === null ? null : -row.seen_s), number: true, text: (row) => (row.seen_s === null ? UNKNOWN : format.ago(this.run.now() - row.seen_s)) },
      { name: "Board", text: (row) => format.text(row.board), wide: true },
      { name: "Accuracy", text: (row) => format.percent(row.accuracy), number: true },
    ], (row) => row.id);
    this.nobody = make("p", { class: "soft" });
    this.more = make("p", { class: "soft" });
    this.held = new LiveTable("Devices that answer nothing in this exchange", [
      { name: "Device", text: (row) => row.id, link: (row) => link(row.id) },
      { name: "State", text: (row) => row.state, state: true },
      { name: "Why", text: (row) => row.why || "", why: true },
    ], (row) => row.id);
    this.open = make("section", {}, this.line, this.figures, this.bar, make("h3", {}, "Who is awaited"), this.nobody, this.awaited.element, this.more, this.held.element);
    this.rounds = make("div");
    this.table = null;
    this.missed = new LiveTable("Who missed which exchange, and why, the newest first", [
      { name: "Device", text: (row) => row.device, link: (row) => link(row.device) },
      { name: "Round", text: (row) => String(row.round), number: true },
      { name: "Exchange", text: (row) => String(row.exchange), number: true, wide: true },
      { name: "Why", text: (row) => row.why, why: true },
    ], (row) => row.round + "." + row.exchange + "." + row.device);
    this.lost = make("section", {}, make("h3", {}, "Deadlines that were missed"), this.missed.element);
    this.element = make("div", {}, this.orders.element, this.open, make("h3", {}, "Rounds that are done"), this.rounds, this.lost);
  }
  show(run) {
    this.run = run;
    this.orders.show(run);
    const now = run.round, going = now && now.phase === "collecting";
    this.open.hidden = !now || now.phase === undefined;
    if (!this.open.hidden) this.showOpen(run, now, going);
    if (!this.table && run.roundFacts.length) this.makeTable(run.roundFacts);
    if (this.table) this.table.show(run.history.slice(-200).reverse());
    this.lost.hidden = !run.missed.length;
    this.missed.show([...run.missed].reverse());
  }
  /* The figures come with the first state. */
  makeTable(facts) {
    this.table = new LiveTable("Rounds, the newest first", [
      { name: "Round", text: (row) => String(row.round), number: true },
      ...facts.map((fact, place) => ({ name: fact[1], text: (row) => format.fact(fact, row), number: fact[4], wide: place > 3 })),
    ], (row) => row.round);
    this.rounds.replaceChildren(this.table.element);
  }
  showOpen(run, now, going) {
    const name = now.closing ? "Closing exchange" : "Round " + ofRounds(now.round, run.head.rounds) + ", exchange " + now.exchange + " of " + now.exchanges;
    setText(this.line, name + ": " + now.doing);
    const left = now.due_s === null ? UNKNOWN : format.seconds(Math.max(0, now.due_s - run.now()));
    setFigures(this.figures, [
      ["Answers", now.answered + " of " + now.invited], ["Needed at least (quorum)", String(now.needed)],
      ["Awaited", String(now.awaited_count)], ["Until the deadline", going ? left : UNKNOWN],
      ["Deadlines passed without a quorum", now.misses + " of " + now.patience],
    ]);
    const all = Math.max(1, now.invited);
    this.bar.setAttribute("aria-valuemax", all);
    this.bar.setAttribute("aria-valuenow", now.answered);
    this.fill.style.width = (100 * now.answered) / all + "%";
    this.mark.style.left = Math.min(99.5, (100 * now.needed) / all) + "%";
    this.mark.title = "quorum";
    const of = (names) => names.map((id) => run.devices.get(id)).filter(Boolean);
    this.awaited.show(of(now.awaited));
    this.awaited.element.hidden = !now.awaited.length;
    setText(this.nobody, now.awaited.length ? "" : "Nobody: no answer is missing.");
    const more = now.awaited_count - now.awaited.length;
    setText(this.more, more > 0 ? "and " + more + " more" : "");
    this.held.show(of(now.held));
    this.held.element.hidden = !now.held.length;
  }
}

const AXES = {
  rounds: { name: "rounds", whole: true, text: (value) => String(value), of: (row) => row.round, sums: false },
  bytes: { name: "bytes of all devices, both ways", text: format.bytes, of: (row) => row.bytes_up + row.bytes_down, sums: true },
  time: { name: "time", text: format.seconds, of: (row) => row.took_s, sums: true },
  joules: { name: "joules of all devices", text: format.joules, of: (row) => row.device_j, sums: true },
};

function along(history, axis) {
  let sum = 0;
  return history.map((row) => (axis.sums ? (sum += axis.of(row) || 0) : axis.of(row)));
}

class LearningView {
  constructor() {
    this.title = "Learning";
    this.choice = make("select", {}, ...Object.keys(AXES).map((name) => make("option", { value: name }, name)));
    this.choice.addEventListener("change", () => this.run && this.show(this.run));
    const share = { name: "accuracy", text: format.percent };
    this.main = new Plot("Accuracy of the devices' own models", ["mean", "best device", "worst device"], AXES.rounds, share, { band: [2, 3] });
    this.compared = new Plot("Mean accuracy: own models, the shared model, devices alone", ["own models", "shared model", "devices alone", "own tasks"], AXES.rounds, share);
    this.curves = new Curves("Accuracy of each device's own model");
    this.figures = make("dl", { class: "figures" });
    this.classes = new LiveTable("Classes", [
      { name: "Class", text: (row) => String((this.run.head.class_names || [])[row.name] || row.name) },
      { name: "Samples on all devices", text: (row) => String(row.samples), number: true },
      { name: "Devices that hold it", text: (row) => String(row.holders), number: true },
      { name: "Mean probability of the right class", text: (row) => format.percent(row.right), number: true },
    ], (row) => row.name);
    this.classPart = make("section", {}, make("h3", {}, "Classes"), this.classes.element);
    this.instruments = new Map();
    this.small = make("div", { class: "small" });
    this.instrumentPart = make("section", {}, make("h3", {}, "Instruments of the method"),
      make("p", { class: "soft" }, "What the method reports of itself; the mean over the devices that report it."), this.small);
    this.element = make("div", {}, this.figures, make("div", { class: "tools" }, make("label", {}, "Against", this.choice)),
      this.main.element, this.compared.element, this.curves.element, this.classPart, this.instrumentPart);
    this.nothing = make("p", { class: "soft" }, "No accuracy was reported yet.");
    this.element.prepend(this.nothing);
  }
  plots() { return [this.main, this.compared, this.curves.plot, ...this.instruments.values()].filter(Boolean); }
  show(run) {
    this.run = run;
    this.curves.show(run);
    const axis = AXES[this.choice.value];
    const measured = (row) => ["mean", "global", "own_task"].some((name) => row[name] !== null);
    const found = run.history.filter(measured);
    const x = along(run.history, axis).filter((_, place) => measured(run.history[place]));
    const column = (name) => found.map((row) => row[name]);
    this.nothing.hidden = found.length > 0;
    this.main.element.hidden = !found.some((row) => row.mean !== null);
    this.main.show([x, column("mean"), column("best"), column("worst")], axis);
    this.compared.element.hidden = !found.some((row) => row.global !== null || row.alone !== null || row.own_task !== null);
    this.compared.show([x, column("mean"), column("global"), column("alone"), column("own_task")], axis);
    const last = (name) => { const known = found.filter((row) => row[name] !== null); return known.length ? known[known.length - 1][name] : null; };
    setFigures(this.figures, [["Own models, mean", format.percent(last("mean"))], ["Worst device", format.percent(last("worst"))],
      ["Shared model", format.percent(last("global"))], ["Devices alone", format.percent(last("alone"))],
      ["Joules", format.joules(run.history.reduce((sum, row) => sum + (row.device_j || 0), 0) || null)]]);
    this.showClasses(run);
    this.showInstruments(run);
  }
  showClasses(run) {
    const right = run.head.class_right || [];
    const counted = (run.head.by_class || []).map(([samples, holders], name) => ({ name, samples, holders, right: name < right.length ? right[name] : null }));
    this.classPart.hidden = !counted.length;
    this.classes.show(counted);
  }
  showInstruments(run) {
    const names = [...new Set(run.history.flatMap((row) => Object.keys(row.instruments)))].sort();
    this.instrumentPart.hidden = !names.length;
    for (const name of names) {
      if (!this.instruments.has(name)) {
        const plot = new Plot(name, ["mean"], AXES.rounds, { name: "", text: format.number }, { height: 180 });
        plot.keys.hidden = true;
        this.instruments.set(name, plot);
        this.small.append(plot.element);
      }
      const found = run.history.filter((row) => row.instruments[name] !== undefined && row.instruments[name] !== null);
      this.instruments.get(name).show([found.map((row) => row.round), found.map((row) => row.instruments[name])]);
    }
  }
}

class LedgerView {
  constructor() {
    this.title = "Ledger";
    this.figures = make("dl", { class: "figures" });
    this.bytes = new Plot("Bytes of each round", ["sent by devices", "sent to devices"], AXES.rounds, { name: "bytes", text: format.bytes });
    this.times = new Plot("Seconds of each round", ["whole round", "waiting for the last device", "computing, mean of a device that answered", "the rest: messages, coordinator"], AXES.rounds, { name: "seconds", text: format.seconds });
    this.devices = new LiveTable("Devices by bytes, the 20 with most", [
      { name: "Device", text: (row) => row.id, link: (row) => link(row.id) },
      { name: "Sent", text: (row) => format.bytes(row.bytes_up), number: true },
      { name: "Received", text: (row) => format.bytes(row.bytes_down), number: true },
      { name: "Waited for it", text: (row) => format.seconds(row.waited_s), number: true },
      { name: "Computing", text: (row) => format.seconds(row.busy_s), number: true },
      { name: "Sending and receiving", text: (row) => format.seconds(row.air_s), number: true, wide: true },
    ], (row) => row.id);
    this.kinds = new LiveTable("Bytes by what travelled, since the coordinator was started", [
      { name: "What", text: (row) => row[0] }, { name: "Sent by devices", text: (row) => format.bytes(row[1]), number: true },
      { name: "Sent to devices", text: (row) => format.bytes(row[2]), number: true },
    ], (row) => row[0]);
    this.months = new LiveTable("Months, the newest first, over all restarts", [
      { name: "Month", text: (row) => row.period }, { name: "Rounds", text: (row) => String(row.rounds), number: true },
      { name: "Skipped", text: (row) => String(row.skipped), number: true },
      { name: "Answers a round", text: (row) => (row.contributors / Math.max(1, row.rounds)).toFixed(1), number: true, wide: true },
      { name: "Bytes", text: (row) => format.bytes(row.bytes_up + row.bytes_down), number: true },
      { name: "Joules", text: (row) => (row.device_j ? row.device_j.toPrecision(3) : UNKNOWN), number: true, wide: true },
      { name: "Accuracy at its end", text: (row) => format.percent(row.accuracy), number: true },
    ], (row) => row.period);
    this.updates = new LiveTable("Uploads by what became of them", [
      { name: "Verdict", text: (row) => row[0] }, { name: "Uploads", text: (row) => String(row[1]), number: true },
    ], (row) => row[0]);
    this.frames = new LiveTable("Refused frames", [
      { name: "Sender", text: (row) => row[0] }, { name: "Reason", text: (row) => row[1] }, { name: "Frames", text: (row) => String(row[2]), number: true },
    ], (row) => row[0] + " " + row[1]);
    this.refused = new LiveTable("Refused devices", [
      { name: "Device", text: (row) => row.device }, { name: "Why", text: (row) => row.message, why: true }, { name: "What to do", text: (row) => row.remedy, why: true },
    ], (row) => row.device);
    this.none = make("p", { class: "soft" }, "Nothing was refused.");
    this.warnings = make("ul", { class: "plain" });
    this.warned = make("section", {}, make("h3", {}, "Warnings"), this.warnings);
    this.element = make("div", {}, this.figures, this.months.element, this.bytes.element, this.kinds.element, this.times.element, make("h3", {}, "Devices"), this.devices.element,
      make("h3", {}, "Uploads"), this.updates.element, make("h3", {}, "Refused"), this.none, this.frames.element, this.refused.element, this.warned);
  }
  plots() { return [this.bytes, this.times]; }
  show(run) {
    const found = run.ledger, history = run.history, x = history.map((row) => row.round);
    setFigures(this.figures, [["Sent by devices", format.bytes(found.bytes_up)], ["Sent to devices", format.bytes(found.bytes_down)],
      ["Rounds took", format.seconds(history.reduce((sum, row) => sum + row.took_s, 0))],
      ["Waiting for the last device", format.seconds(history.reduce((sum, row) => sum + row.waited_s, 0))],
      ["Computing, all devices", format.seconds(history.reduce((sum, row) => sum + (row.device_s || 0), 0) || null)]]);
    for (const plot of this.plots()) plot.element.hidden = !history.length;
    this.bytes.show([x, history.map((row) => row.bytes_up), history.map((row) => row.bytes_down)]);
    const computing = (row) => (row.device_s === null ? null : row.device_s / Math.max(1, row.contributors));
    const rest = (row) => (row.device_s === null ? null : Math.max(0, row.took_s - row.waited_s - computing(row)));
    this.times.show([x, history.map((row) => row.took_s), history.map((row) => row.waited_s), history.map(computing), history.map(rest)]);
    const months = found.months || [];
    this.months.element.hidden = !months.length;
    this.months.show([...months].reverse());
    const kinds = (found.kinds || []).filter((row) => row[1] || row[2]);
    this.kinds.element.hidden = !kinds.length;
    this.kinds.show(kinds);
    const size = (row) => (row.bytes_up || 0) + (row.bytes_down || 0);
    this.devices.show(rows(run).sort((one, other) => size(other) - size(one)).slice(0, 20));
    this.updates.show(Object.entries(found.updates || {}));
    const frames = found.refused_frames || [], devices = found.refused_devices || [];
    this.none.hidden = frames.length + devices.length > 0;
    this.frames.element.hidden = !frames.length;
    this.frames.show(frames);
    this.refused.element.hidden = !devices.length;
    this.refused.show(devices);
    const warnings = found.warnings || [];
    this.warned.hidden = !warnings.length;
    if (this.told !== warnings.join("\n")) { this.told = warnings.join("\n"); this.warnings.replaceChildren(...warnings.map((text) => make("li", {}, text))); }
  }
}

class DeviceView {
  constructor(id) {
    this.title = id;
    this.id = id;
    this.state = make("span", { class: "state" });
    this.why = make("span");
    this.line = make("p", {}, this.state, " ", this.why);
    this.figures = make("dl", { class: "figures" });
    this.facts = make("dl", { class: "facts" });
    this.classes = new LiveTable("Samples by class", [{ name: "Class", text: (row) => String((this.run.head.class_names || [])[row[0]] || row[0]) }, { name: "Samples", text: (row) => String(row[1]), number: true }], (row) => row[0]);
    this.curves = new Curves("Accuracy of its own model", id);
    this.orders = new Orders([["pause", "Pause: do not invite it, nor wait for it"], ["resume", "Resume: invite it again"], ["drain", "Drain: it finishes the round, then stops"]], id);
    this.element = make("div", {}, this.line, this.figures, this.orders.element, this.curves.element, make("h3", {}, "What it is"), this.facts, this.classes.element,
      make("p", {}, make("a", { href: "#fleet" }, "Back to the fleet")));
  }
  plots() { return this.curves.plot ? [this.curves.plot] : []; }
  show(run) {
    this.run = run;
    const row = run.devices.get(this.id);
    this.orders.show(run);
    this.curves.show(run);
    for (const part of [this.figures, this.facts]) part.hidden = !row;
    this.classes.element.hidden = !row || !row.class_counts;
    if (!row) { setText(this.why, "No device of this name is known."); return; }
    setState(this.state, row.state);
    setText(this.why, row.why || "");
    this.curves.element.hidden = this.curves.empty;
    setFigures(this.figures, [["Round", format.text(row.round)], ["Accuracy", format.percent(row.accuracy)], ["Shared model", format.percent(row.global)],
      ["Temperature", format.heat(row)], ["Last heard", row.seen_s === null ? UNKNOWN : format.ago(run.now() - row.seen_s)]]);
    setFigures(this.facts, [...run.deviceFacts.map((fact) => [fact[1], format.fact(fact, row)]),
      ["Sending and receiving", format.seconds(row.air_s)], ["edge-sdk", format.text(row.version)]]);
    if (row.class_counts) this.classes.show(row.class_counts.map((count, name) => [name, count]));
  }
}
