// node device.mjs --broker mqtt://HOST:PORT --federation NAME --id ID [--teacher teacher.json] [--state DIR]
//
// Takes part in a federation as a teacher: gives the logits of a nearest-mean classifier, and never learns.

import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import mqtt from "mqtt";
import { Session } from "./session.mjs";
import { loadTeacher } from "./teacher.mjs";
import {
  Illegal, batchDigest, decodeFrame, drawBatch, encodeFrame, publicName, statusTopic, subscriptions, tensorF4, upTopic,
} from "./protocol.mjs";

const PARAMETERS = {
  fedmd: ["align", "digest_steps", "error", "form", "public_batch", "target", "temperature"],
};
const TICK_MS = 100;

const { values: options } = parseArgs({
  options: {
    broker: { type: "string" },
    federation: { type: "string" },
    id: { type: "string" },
    teacher: { type: "string", default: "teacher.json" },
    state: { type: "string", default: "state" },
  },
});
for (const name of ["broker", "federation", "id"]) {
  if (!options[name]) fail(`--${name} is missing`, 2);
}

const { federation, id: device } = options;
const teacher = loadTeacher(options.teacher);
const setName = publicName(teacher.public);
const bootEpoch = nextBoot(options.state);
let sequence = 0;
let spec = null;

const nowS = () => performance.now() / 1000;
const frameOf = (tag, fields) => encodeFrame(tag, { federation, device, ...fields }, { bootEpoch, sequence: ++sequence });
const status = (state) => frameOf("device-status", { state, boot: bootEpoch });
const publish = (topic, frame, retain = false) => client.connected && client.publish(topic, frame, { qos: 1, retain });

const session = new Session({
  hello: () => publish(upTopic(federation, device, "hello"), frameOf("hello", {
    classes: teacher.classes,
    capabilities: ["predict"],
    public_sha256: setName,
    model: "nearest mean",
    runtime: `node ${process.versions.node}`,
  })),
  accept,
  work,
  upload: (frame) => publish(upTopic(federation, device, "upd"), frame),
  done: leave,
});

const client = mqtt.connect(options.broker, {
  protocolVersion: 4, // 3.1.1, which every broker speaks
  clientId: `${federation}-${device}`,
  clean: true,
  resubscribe: false,
  queueQoSZero: false,
  will: { topic: statusTopic(federation, device), payload: status("lost"), qos: 1, retain: true },
});
client.on("connect", () => {
  client.stream.setNoDelay?.(true);
  client.subscribe(subscriptions(federation, device), { qos: 1 }, (error) => {
    if (error) return say(`subscription: ${error.message}`);
    publish(statusTopic(federation, device), status("ready"), true);
    session.connected(nowS());
  });
});
client.on("message", (topic, frame) => take(topic, frame));
client.on("error", (error) => say(`broker: ${error.message}`));
const ticking = setInterval(() => client.connected && session.tick(nowS()), TICK_MS);

/** An illegal frame is reported and ignored. */
function take(topic, frame) {
  try {
    const { tag, fields } = decodeFrame(frame);
    if (fields.federation !== federation || (fields.device ?? device) !== device) throw new Illegal("topic", "for somebody else");
    session.take(tag, fields, nowS());
  } catch (error) {
    if (!(error instanceof Illegal)) throw error;
    say(`refused a frame on ${topic}: ${error.kind}: ${error.message}`);
  }
}

/** Why this federation cannot be served; empty if it can. */
function accept(offered) {
  const known = PARAMETERS[offered.method];
  if (!known) return `the method is ${offered.method}; this device knows ${Object.keys(PARAMETERS).join(", ")}`;
  const strange = Object.keys(offered.params ?? {}).filter((name) => !known.includes(name));
  if (strange.length) return `${offered.method} has the parameter ${strange[0]}, which this device does not know`;
  if (offered.classes !== teacher.classes) return `${offered.classes} classes, this model has ${teacher.classes}`;
  if (!offered.public || !setName.equals(Buffer.from(offered.public.sha256))) return "another public set";
  spec = offered;
  say(`joined ${federation}: ${spec.method}, ${spec.rounds} rounds`);
  return "";
}

/** The Upload of an exchange: logits on its public batch; in the closing one nothing. */
function work({ round, exchange, closing = false, run }) {
  const knowledge = closing ? {} : { logits: ["logits", logits(round, exchange)] };
  return frameOf("upload", { round, exchange, closing, knowledge, ...(run && { run }) });
}

function logits(round, exchange) {
  const size = spec.params.form === "digest" ? spec.params.align : spec.params.public_batch;
  const indices = drawBatch({ seed: spec.seed ?? 0, round, iteration: exchange, size, count: spec.public.count });
  return { values: tensorF4(teacher.logits(indices)), batch: batchDigest(setName, indices) };
}

function leave(reason) {
  clearInterval(ticking);
  publish(statusTopic(federation, device), status("disconnected"), true);
  client.end(false, {}, () => (reason ? fail(reason, 1) : say("the federation is complete")));
}

/** One more than at the last start, kept on disk. */
function nextBoot(folder) {
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${options.federation}-${options.id}.boot`);
  const boot = existsSync(path) ? Number(readFileSync(path, "utf8")) + 1 : 1;
  writeFileSync(`${path}.new`, `${boot}\n`);
  renameSync(`${path}.new`, path);
  return boot;
}

function say(line) {
  process.stdout.write(`${device}: ${line}\n`);
}

function fail(line, code) {
  process.stderr.write(`device.mjs: ${line}\n`);
  process.exit(code);
}
