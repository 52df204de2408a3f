// A device in a web page: takes part in a federation of LG-FedAvg with a softmax regression, over MQTT by WebSocket.

import mqtt from "./vendor/mqtt.esm.js";
import { Session } from "../other_language/session.mjs";
import {
  Illegal, decodeFrame, encodeFrame, readTensor, statusTopic, subscriptions, tensor, upTopic,
} from "./protocol.mjs";

const TICK_MS = 100;

/**
 * model: a Softmax; samples(): its training samples {x, y}; test: samples to measure it on.
 * say(line) gets news, done(reason) the end; an empty reason is success.
 */
export class Device {
  constructor({ broker, federation, id, model, samples, test, say, done }) {
    Object.assign(this, { federation, id, model, samples, test, say, done });
    this.bootEpoch = nextBoot(`${federation}-${id}`);
    this.sequence = 0;
    this.session = new Session({
      hello: () => this.publish(upTopic(federation, id, "hello"), this.hello()),
      accept: (spec) => this.accept(spec),
      work: (assign) => this.work(assign),
      upload: (frame) => this.publish(upTopic(federation, id, "upd"), frame),
      done: (reason) => this.leave(reason),
    });
    this.client = mqtt.connect(broker, {
      protocolVersion: 4,
      clientId: `${federation}-${id}`,
      clean: true,
      resubscribe: false,
      queueQoSZero: false,
      will: { topic: statusTopic(federation, id), payload: this.status("lost"), qos: 1, retain: true },
    });
    this.client.on("connect", () => this.connected());
    this.client.on("message", (topic, frame) => this.take(topic, frame));
    this.client.on("error", (error) => say(`broker: ${error.message}`));
    this.ticking = setInterval(() => this.client.connected && this.session.tick(nowS()), TICK_MS);
  }

  connected() {
    this.say("connected to the broker");
    this.client.subscribe(subscriptions(this.federation, this.id), { qos: 1 }, (error) => {
      if (error) return this.say(`subscription: ${error.message}`);
      this.publish(statusTopic(this.federation, this.id), this.status("ready"), true);
      this.session.connected(nowS());
    });
  }

  /** An illegal frame is reported and ignored. */
  take(topic, frame) {
    try {
      const { tag, fields } = decodeFrame(frame);
      const ours = fields.federation === this.federation && (fields.device ?? this.id) === this.id;
      if (!ours) throw new Illegal("topic", "for somebody else");
      this.session.take(tag, fields, nowS());
    } catch (error) {
      if (!(error instanceof Illegal)) throw error;
      this.say(`refused a frame on ${topic}: ${error.kind}: ${error.message}`);
    }
  }

  hello() {
    return this.frame("hello", {
      classes: this.model.classes,
      feature_dim: this.model.width,
      samples: this.samples().length,
      capabilities: ["predict", "logit-gradients", "head-rows"],
      terms: ["cross-entropy"],
      model: "softmax",
      runtime: "browser",
    });
  }

  /** Why this federation cannot be served; empty if it can. */
  accept(spec) {
    if (spec.method !== "lg_fedavg") return `the method is ${spec.method}; this page knows lg_fedavg`;
    const strange = Object.keys(spec.params ?? {}).filter((name) => name !== "weighting");
    if (strange.length) return `lg_fedavg has the parameter ${strange[0]}, which this page does not know`;
    if (spec.classes !== this.model.classes) return `${spec.classes} classes, this model has ${this.model.classes}`;
    this.spec = spec;
    this.say(`joined ${this.federation}: ${spec.method}, ${spec.rounds} rounds`);
    return "";
  }

  /** Take over the mean of all last layers, train on own samples, give the Upload with the own last layer. */
  work({ round, exchange, closing = false, run, common = {} }) {
    const { rounds, train = {} } = this.spec;
    if (common.header) this.overwrite(common.header[1]);
    if (!closing) this.train(train);
    const done = closing ? rounds : round + 1;
    const accuracy = this.model.accuracy(this.test);
    this.say(closing ? `closing: ${percent(accuracy)}` : `round ${done} of ${rounds}: ${percent(accuracy)}`);
    const knowledge = closing ? {} : { header: ["class-rows", this.header()] };
    return this.frame("upload", {
      round,
      exchange,
      closing,
      knowledge,
      samples: this.samples().length,
      metrics: { accuracy },
      metrics_round: done,
      ...(run && { run }),
    });
  }

  overwrite({ classes, rows }) {
    const width = this.model.width + 1;
    const { numbers } = readTensor(rows);
    readTensor(classes).numbers.forEach((k, at) => {
      this.model.rows.set(numbers.subarray(at * width, (at + 1) * width), k * width);
    });
  }

  header() {
    const { classes, width, rows } = this.model;
    return {
      classes: tensor("i4", [classes], Array.from({ length: classes }, (_, k) => k)),
      rows: tensor("f4", [classes, width + 1], rows),
      counts: tensor("i4", [classes], Array(classes).fill(1)),
    };
  }

  train({ local_steps = 5, batch_size = 32, learning_rate = 0.001 }) {
    const all = this.samples();
    for (let step = 0; step < local_steps; step++) {
      const batch = Array.from({ length: batch_size }, () => all[Math.floor(Math.random() * all.length)]);
      this.model.step(batch, learning_rate);
    }
  }

  leave(reason) {
    clearInterval(this.ticking);
    this.publish(statusTopic(this.federation, this.id), this.status("disconnected"), true);
    this.client.end(false, {}, () => this.done(reason));
  }

  frame(tag, fields) {
    const stamp = { bootEpoch: this.bootEpoch, sequence: ++this.sequence };
    return encodeFrame(tag, { federation: this.federation, device: this.id, ...fields }, stamp);
  }

  status(state) {
    return this.frame("device-status", { state, boot: this.bootEpoch });
  }

  publish(topic, frame, retain = false) {
    if (this.client.connected) this.client.publish(topic, frame, { qos: 1, retain });
  }
}

const nowS = () => performance.now() / 1000;
const percent = (share) => `${Math.round(100 * share)} % of the test digits`;

/** One more than at the last start, kept in the browser. */
function nextBoot(name) {
  const boot = Number(localStorage.getItem(`boot-${name}`) ?? 0) + 1;
  localStorage.setItem(`boot-${name}`, String(boot));
  return boot;
}
