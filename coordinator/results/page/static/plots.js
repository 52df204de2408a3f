"use strict";
/* Plots with uPlot: lines that differ by colour and by dash, a legend in HTML, and the same figures as a table. */

/* Steps between the marks of an axis that counts; there is no half a round. */
const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const LINES = [["--a", []], ["--b", [8, 4]], ["--c", [2, 3]], ["--d", [8, 3, 2, 3]]];

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function sample(place) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 44 12");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(space, "line");
  for (const [key, value] of Object.entries({ x1: 0, x2: 44, y1: 6, y2: 6, "stroke-width": 3 })) line.setAttribute(key, value);
  line.setAttribute("stroke-dasharray", LINES[place % LINES.length][1].join(" "));
  line.style.stroke = "var(" + LINES[place % LINES.length][0] + ")";
  svg.append(line);
  return svg;
}

/* A figure.  lines: names; x and y: {name, text}; band: places of the two lines that bound a band. */
class Plot {
  constructor(title, lines, x, y, { band = null, height = 260, thin = false } = {}) {
    Object.assign(this, { title, lines, x, y, band, height, thin, chart: null, data: null });
    this.box = make("div", { class: "plot", role: "img" });
    /* Of many lines the table below names each; a legend of sixty entries helps nobody. */
    this.keys = make("ul", { class: "keys" }, ...(thin ? [] : lines.map((name, place) => make("li", {}, sample(place), name))));
    this.table = new LiveTable(title, [{ name: x.name, text: (row) => x.text(row[0]) },
      ...lines.map((name, place) => ({ name, number: true, text: (row) => y.text(row[place + 1]) }))], (row) => row[row.length - 1]);
    this.details = make("details", {}, make("summary", {}, "The same as a table"), this.table.element);
    this.details.addEventListener("toggle", () => this.fillTable());
    this.element = make("figure", {}, make("figcaption", {}, title), this.keys, this.box, this.details);
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.box);
  }
  /* A line without a single figure, such as the shared model of a method that has none, is not in the legend. */
  told(place) { return this.thin || this.data[place + 1].some((value) => value !== null && value !== undefined); }
  show(data, x) {
    const same = x === undefined || x.name === this.x.name;
    if (!same) { this.x = x; this.drop(); this.table.heads[0].textContent = x.name; this.table.columns[0].text = (row) => x.text(row[0]); }
    this.data = data;
    const last = data[0].length - 1;
    const told = last < 0 ? "nothing yet" : this.thin ? this.lines.length + " lines" : this.lines.map((name, place) => (this.told(place) ? name + " " + this.y.text(data[place + 1][last]) : "")).filter(Boolean).join(", ");
    this.box.setAttribute("aria-label", this.title + "; last: " + told);
    [...this.keys.children].forEach((key, place) => { key.hidden = !this.told(place); });
    if (this.chart) this.chart.setData(data); else this.draw();
    this.fillTable();
  }
  fillTable() {
    if (!this.details.open || !this.data) return;
    this.table.show(this.data[0].map((_, row) => [...this.data.map((column) => column[row]), row]));
  }
  drop() { if (this.chart) { this.chart.destroy(); this.chart = null; } }
  redraw() { this.drop(); if (this.data) this.draw(); }
  width() { return Math.max(200, this.box.clientWidth - 18); }
  resize() { if (this.chart && this.box.clientWidth) this.chart.setSize({ width: this.width(), height: this.height }); else if (this.data) this.draw(); }
  draw() {
    if (!this.box.isConnected || !this.box.clientWidth || this.chart) return;
    const axis = { stroke: colour("--text"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--line") }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
    const many = this.data[0].length > 40;
    this.chart = new uPlot({
      width: this.width(), height: this.height, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false } },
      axes: [
        { ...axis, label: this.x.name, labelSize: 20, size: 30, space: 70, ...(this.x.whole ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map(this.x.text) },
        { ...axis, label: this.y.name, labelSize: 20, size: 62, values: (_, ticks) => ticks.map(this.y.text) },
      ],
      series: [{}, ...this.lines.map((name, place) => ({
        label: name, stroke: colour(LINES[place % LINES.length][0]), dash: LINES[place % LINES.length][1], width: this.thin ? 1 : 2, spanGaps: true,
        points: { show: !many && !this.thin, size: 6 },
      }))],
      bands: this.band ? [{ series: this.band, fill: colour("--band") }] : [],
    }, this.data, this.box);
  }
}
