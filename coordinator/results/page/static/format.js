"use strict";
/* Numbers as people read them, and elements. */

const UNKNOWN = "\u2013";
const GAP = "\u00a0";
const FOREVER = 1e9; // the number of rounds of a service

function ofRounds(round, rounds) { return rounds === FOREVER ? String(round) : round + " of " + rounds; }

function scaled(value, step, units) {
  let place = 0;
  while (place < units.length - 1 && Math.round(value) >= step) { value /= step; place += 1; }
  const digits = place === 0 || value >= 99.95 ? 0 : 1;
  return value.toFixed(digits) + GAP + units[place];
}

const format = {
  text: (value) => (value === null || value === undefined || value === "" ? UNKNOWN : String(value)),
  percent: (value) => (value === null || value === undefined ? UNKNOWN : (100 * value).toFixed(1) + GAP + "%"),
  bytes: (value) => (value === null || value === undefined ? UNKNOWN : scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"])),
  joules: (value) => (value === null || value === undefined ? UNKNOWN : scaled(value, 1000, ["J", "kJ", "MJ", "GJ"])),
  celsius: (value) => (value === null || value === undefined ? UNKNOWN : value.toFixed(0) + GAP + "\u00b0C"),
  /* Of a device: degrees where it has a sensor; of a simulated board the share of the heat at which it slows down. */
  heat: (row) => (row.temperature_c !== null && row.temperature_c !== undefined ? format.celsius(row.temperature_c)
    : row.heat !== null && row.heat !== undefined ? Math.round(100 * row.heat) + GAP + "% of its limit" : UNKNOWN),
  number: (value) => (value === null || value === undefined ? UNKNOWN : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
    ? value.toExponential(2) : String(Number(value.toPrecision(4)))),
  seconds: (value) => {
    if (value === null || value === undefined) return UNKNOWN;
    const whole = Math.round(value);
    if (value < 1) return value.toFixed(2) + GAP + "s";
    if (whole < 60) return value.toFixed(1) + GAP + "s";
    if (whole < 3600) return Math.floor(whole / 60) + GAP + "min" + GAP + String(whole % 60).padStart(2, "0") + GAP + "s";
    return Math.floor(whole / 3600) + GAP + "h" + GAP + String(Math.floor((whole % 3600) / 60)).padStart(2, "0") + GAP + "min";
  },
  counts: (value) => Object.entries(value).map(([word, count]) => count + " " + word).join(", ") || UNKNOWN,
  /* A declared figure: by its unit, or by what its value is. */
  fact: ([name, , unit, blank], row) => {
    const value = row[name];
    if (value === null || value === undefined || (blank && !value)) return UNKNOWN;
    if (typeof value === "object") return format.counts(value);
    const say = { bytes: format.bytes, s: format.seconds, J: format.joules, share: format.percent }[unit];
    return say ? say(value) : typeof value === "number" && !Number.isInteger(value) ? format.number(value) : format.text(value);
  },
  ago: (value) => (value === null || value === undefined ? UNKNOWN : (value < 60 ? Math.max(0, Math.round(value)) + GAP + "s" : format.seconds(value)) + " ago"),
};

/* An element: make("p", {class: "soft"}, "text", another element). */
function make(name, attributes, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) found.setAttribute(key, value);
  }
  found.append(...children.filter((each) => each !== null && each !== undefined));
  return found;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const STATE_LOOK = {
  training: "good", computing: "good", running: "good", finished: "done", done: "done", absent: "bad", refused: "bad", revoked: "bad", failed: "bad",
  left: "bad", withheld: "bad", "never joined": "bad", declined: "held", drained: "held", draining: "held", stopped: "held",
};

function setState(element, word) {
  const look = "state " + (STATE_LOOK[word] || "");
  if (element.className !== look) element.className = look;
  setText(element, word || "");
}

/* Figures with names, updated in place: pairs of name and text. */
function setFigures(list, pairs) {
  const names = pairs.map(([name]) => name).join("|");
  if (list.dataset.names !== names) {
    list.dataset.names = names;
    list.replaceChildren(...pairs.map(([name]) => make("div", {}, make("dt", {}, name), make("dd", {}))));
  }
  pairs.forEach(([, text], place) => setText(list.children[place].lastChild, text));
}

/* A table whose cells are updated in place.  columns: {name, text(row), key?, number?, wide?, link?, state?, why?}. */
class LiveTable {
  constructor(caption, columns, key) {
    this.columns = columns; this.key = key; this.lines = new Map(); this.sort = null;
    this.body = make("tbody");
    this.caption = make("caption", {}, caption);
    this.heads = columns.map((column, place) => {
      const head = make("th", { scope: "col", class: this.look(column) });
      if (!column.key) { head.append(column.name); return head; }
      const button = make("button", { type: "button" }, column.name);
      button.addEventListener("click", () => this.sortBy(place));
      head.append(button);
      return head;
    });
    this.element = make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
      make("table", {}, this.caption, make("thead", {}, make("tr", {}, ...this.heads)), this.body));
  }
  look(column) { return [column.number && "number", column.wide && "wide", column.why && "why"].filter(Boolean).join(" ") || null; }
  sortBy(place) {
    const down = this.sort && this.sort.place === place && !this.sort.down;
    this.sort = { place, down };
    this.heads.forEach((head, at) => (at === place ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    if (this.rows) this.show(this.rows);
  }
  ordered(rows) {
    if (!this.sort) return rows;
    const { key } = this.columns[this.sort.place];
    const sign = this.sort.down ? -1 : 1;
    const known = (value) => value !== null && value !== undefined && value !== "";
    return [...rows].sort((one, other) => {
      const a = key(one), b = key(other);
      if (!known(a) || !known(b)) return known(b) - known(a);
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    });
  }
  show(rows) {
    this.rows = rows;
    const present = new Set();
    let before = this.body.firstChild;
    for (const row of this.ordered(rows)) {
      const id = this.key(row);
      present.add(id);
      let line = this.lines.get(id);
      if (!line) { line = this.line(); this.lines.set(id, line); }
      this.fill(line, row);
      if (line.element === before) before = before.nextSibling;
      else this.body.insertBefore(line.element, before);
    }
    for (const [id, line] of this.lines) if (!present.has(id)) { line.element.remove(); this.lines.delete(id); }
  }
  line() {
    const cells = this.columns.map((column, place) => {
      const cell = make(place === 0 ? "th" : "td", { class: this.look(column), scope: place === 0 ? "row" : null });
      const inner = column.link ? make("a") : column.state ? make("span") : null;
      if (inner) cell.append(inner);
      return { cell, inner, text: null };
    });
    return { element: make("tr", {}, ...cells.map((each) => each.cell)), cells };
  }
  fill(line, row) {
    this.columns.forEach((column, place) => {
      const found = line.cells[place], text = column.text(row);
      if (found.text === text) return;
      found.text = text;
      if (column.state) setState(found.inner, text);
      else if (column.link) { found.inner.textContent = text; found.inner.setAttribute("href", column.link(row)); }
      else found.cell.textContent = text;
    });
  }
}
