// What the page shows: the device's news, and a field to draw a digit in.

import { Device } from "./device.mjs";
import { Softmax } from "./model.mjs";

const SIZE = 8;
const options = new URLSearchParams(location.search);
const element = (id) => document.getElementById(id);

const file = options.get("data") ?? "digits.json";
const found = await fetch(file);
if (!found.ok) {
  element("news").textContent = `${file} is not here: run make_data.py beside this page`;
  throw new Error(`${file}: ${found.status}`);
}
const data = await found.json();
const sample = ([pixels, y]) => ({ x: pixels.map((value) => value / 16), y });
const train = data.train.map(sample);
const model = new Softmax(10, SIZE * SIZE);
const drawn = new Float32Array(SIZE * SIZE);

function say(line) {
  const item = document.createElement("li");
  item.textContent = line;
  element("news").prepend(item);
  element("samples").textContent = String(train.length);
  show();
}

/** Spread a touch over the pixel and its neighbours, as a pen does. */
function draw(event) {
  if (!event.buttons) return;
  const field = element("field").getBoundingClientRect();
  const [column, row] = [event.clientX - field.left, event.clientY - field.top].map((at) => (at / field.width) * SIZE - 0.5);
  for (let i = 0; i < drawn.length; i++) {
    const far = Math.hypot((i % SIZE) - column, Math.floor(i / SIZE) - row);
    drawn[i] = Math.min(1, drawn[i] + Math.max(0, 0.8 - far));
  }
  show();
}

function show() {
  const context = element("field").getContext("2d");
  drawn.forEach((value, i) => {
    const grey = 255 - Math.round(255 * value);
    context.fillStyle = `rgb(${grey}, ${grey}, ${grey})`;
    context.fillRect((i % SIZE) * 20, Math.floor(i / SIZE) * 20, 20, 20);
  });
  const p = model.predict(Array.from(drawn));
  const best = p.indexOf(Math.max(...p));
  element("guess").textContent = drawn.some(Boolean) ? `${best} (${Math.round(100 * p[best])} %)` : "draw a digit";
}

function clear() {
  drawn.fill(0);
  show();
}

for (let digit = 0; digit < 10; digit++) {
  const button = document.createElement("button");
  button.textContent = String(digit);
  button.addEventListener("click", () => {
    if (drawn.some(Boolean)) train.push({ x: Array.from(drawn), y: digit });
    say(`one more sample: a ${digit}`);
    clear();
  });
  element("labels").append(button);
}
element("field").addEventListener("pointermove", draw);
element("field").addEventListener("pointerdown", draw);
element("clear").addEventListener("click", clear);
element("id").textContent = options.get("id") ?? "browser";

new Device({
  broker: options.get("broker") ?? "ws://127.0.0.1:9001",
  federation: options.get("federation") ?? "digits",
  id: options.get("id") ?? "browser",
  model,
  samples: () => train,
  test: data.test.map(sample),
  say,
  done: (reason) => say(reason ? `ended: ${reason}` : "the federation is complete"),
});
show();
