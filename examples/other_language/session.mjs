// A device's side of a federation, without clock, socket or model: the table "What a device does" of the page.

const HELLO_FIRST_S = 1;
const HELLO_MOST_S = 30;
const RESEND_FIRST_S = 4;
const RESEND_MOST_S = 60;
const IDLE_HELLO_S = 60;

/** Compares two places, [round, exchange]. */
const later = (a, b) => a[0] - b[0] || a[1] - b[1];

const same = (a, b) => a.length === b.length && a.every((byte, at) => byte === b[at]);

/**
 * Feed it with `connected`, `take` and `tick`; it calls
 *   io.hello()                 say hello
 *   io.accept(spec)            raise if this federation cannot be served
 *   io.work(assign) -> frame   carry out an exchange, give the Upload's frame
 *   io.upload(frame)           send it (again)
 *   io.done(reason)            over; an empty reason is success
 */
export class Session {
  constructor(io) {
    this.io = io;
    this.epoch = -1;
    this.place = [-1, 0];
    this.over = false;
    this.rest(0);
  }

  connected(nowS) {
    this.hello(nowS);
    this.wait(nowS, HELLO_FIRST_S);
    if (this.outbox) this.send(nowS);
  }

  hello(nowS) {
    this.io.hello();
    this.saidS = nowS;
  }

  tick(nowS) {
    if (this.over || nowS < this.dueS) return;
    const next = Math.min(2 * this.waitS, this.outbox ? RESEND_MOST_S : HELLO_MOST_S);
    if (!this.outbox || next === RESEND_MOST_S) this.hello(nowS);
    if (this.outbox) this.io.upload(this.outbox);
    this.wait(nowS, this.joined && !this.outbox ? IDLE_HELLO_S : next);
  }

  take(tag, fields, nowS) {
    if (this.over) return;
    if (tag === "welcome") this.welcome(fields, nowS);
    else if (tag === "refusal") this.end(`refused (${fields.reason}): ${fields.message}; ${fields.remedy ?? ""}`);
    else if (tag === "assign" && this.joined) this.assign(fields, nowS);
    else if (tag === "receipt") this.receipt(fields, nowS);
    else if (tag === "coordinator-status") this.seen(fields, nowS);
  }

  welcome({ spec, epoch, run }, nowS) {
    if (this.run && !same(run, this.run)) {
      [this.settings, this.place, this.outbox, this.stored, this.closing] = [null, [-1, 0], null, null, false];
    }
    this.run = run;
    const settings = JSON.stringify(spec);
    if (this.settings && this.settings !== settings) return this.end("the federation has other settings than before");
    if (!this.settings) {
      const fault = this.io.accept(spec);
      if (fault) return this.end(fault);
    }
    [this.settings, this.epoch, this.joined] = [settings, epoch, true];
    if (this.outbox) this.send(nowS);
    else this.rest(nowS);
  }

  assign(assign, nowS) {
    if (assign.run && !same(assign.run, this.run)) return;
    const place = [assign.round, assign.exchange];
    const order = later(place, this.place);
    if (order < 0) return;
    if (order > 0) {
      [this.place, this.closing] = [place, assign.closing ?? false];
      this.stored = this.io.work(assign);
    }
    this.outbox = this.stored;
    this.send(nowS);
  }

  receipt({ round, exchange, run }, nowS) {
    if (run && !same(run, this.run)) return;
    if (later([round, exchange], this.place) !== 0) return;
    this.rest(nowS);
    if (this.closing) this.end("");
  }

  seen({ state, epoch, reason, run, greet }, nowS) {
    if (state === "lost") return;
    const ours = !run || (this.run && same(run, this.run));
    if (state !== "ready" && ours && this.epoch >= 0 && epoch >= this.epoch) {
      this.end(state === "failed" ? reason : this.closing ? "" : "the run is over, and the closing exchange is missing");
    } else if (ours && epoch === this.epoch && !greet) return;
    else if (this.joined || nowS >= this.saidS + HELLO_FIRST_S) this.connected(nowS);
    else this.wait(this.saidS, HELLO_FIRST_S); // its Welcome may be on the way
  }

  send(nowS) {
    this.io.upload(this.outbox);
    this.wait(nowS, RESEND_FIRST_S);
  }

  /** Nothing to send. */
  rest(nowS) {
    this.outbox = null;
    this.wait(nowS, IDLE_HELLO_S);
  }

  wait(nowS, waitS) {
    [this.dueS, this.waitS] = [nowS + waitS, waitS];
  }

  end(reason) {
    this.over = true;
    this.io.done(reason);
  }
}
