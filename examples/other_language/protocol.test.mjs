// node --test: this side of the protocol against the bytes that the project promises to keep permanently.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { Session } from "./session.mjs";
import { Illegal, batchDigest, decodeFrame, drawBatch, encodeFrame, publicName, tensorF4, upTopic } from "./protocol.mjs";

const GOLDEN = new URL("../../tests/protocol/golden/", import.meta.url);
const hex = (name) => Buffer.from(readFileSync(new URL(name, GOLDEN), "ascii").replace(/\s/g, ""), "hex");
const frames = readdirSync(GOLDEN).filter((name) => name.endsWith(".hex"));
const batches = JSON.parse(readFileSync(new URL("public-batches.json", GOLDEN), "utf8"));

for (const name of frames) {
  test(`reads ${name}, and what it writes reads the same`, () => {
    const { tag, fields } = decodeFrame(hex(name));
    assert.deepEqual(decodeFrame(encodeFrame(tag, fields, { bootEpoch: 1, sequence: 2 })), { tag, fields });
  });
}

test("writes the golden bytes themselves", () => {
  for (const name of ["device-status.hex", "receipt.hex", "bye.hex"]) {
    const frame = hex(name);
    const stamp = { bootEpoch: frame.readBigUInt64LE(32), sequence: frame.readBigUInt64LE(40) };
    const { tag, fields } = decodeFrame(frame);
    const body = (bytes) => bytes.subarray(48).toString("hex");
    assert.equal(body(encodeFrame(tag, fields, stamp)), body(frame));
  }
});

test("a damaged frame is refused, whichever byte it is", () => {
  const frame = hex("receipt.hex");
  for (let at = 0; at < frame.length; at++) {
    const damaged = Buffer.from(frame);
    damaged[at] ^= 0x40;
    assert.throws(() => decodeFrame(damaged), Illegal);
  }
  assert.throws(() => decodeFrame(frame.subarray(0, 30)), Illegal);
});

test("draws the golden batches", () => {
  for (const { indices, digest, ...batch } of batches.batches) {
    assert.deepEqual(drawBatch(batch), indices);
    assert.equal(batchDigest(Buffer.from(batches.public_sha256, "hex"), indices).toString("hex"), digest);
  }
});

test("names the golden public sets", () => {
  for (const { dtype, shape, bytes, sha256 } of batches.sets) {
    assert.equal(publicName({ dtype, shape, bytes: Buffer.from(bytes, "hex") }).toString("hex"), sha256);
  }
});

test("a tensor is little-endian, in C order", () => {
  const [dtype, extents, bytes] = tensorF4([[1, -2], [0.5, 0]]);
  assert.deepEqual([dtype, extents], ["f4", [2, 2]]);
  assert.equal(bytes.toString("hex"), "0000803f000000c00000003f00000000");
});

test("the shard is the CRC-32 of the id, modulo 16", () => {
  assert.equal(upTopic("lab", "cam-07", "upd"), "fl/v1/lab/up/11/cam-07/upd");
});

test("a session repeats what is not answered, and obeys only the newest place", () => {
  const did = [];
  const session = new Session({
    hello: () => did.push("hello"),
    accept: () => "",
    work: ({ round }) => (did.push(`work ${round}`), `upload ${round}`),
    upload: (frame) => did.push(frame),
    done: (reason) => did.push(`done ${reason}`),
  });
  const happened = (...expected) => assert.deepEqual(did.splice(0), expected);
  session.connected(0);
  session.take("coordinator-status", { state: "ready", epoch: 1 }, 0.2); // left on the broker: no second hello
  session.take("assign", { round: 0, exchange: 0 }, 0.5); // before it is welcome
  session.tick(1);
  happened("hello", "hello");
  session.take("welcome", { spec: {}, epoch: 1 }, 2);
  session.take("assign", { round: 1, exchange: 0 }, 3);
  session.take("assign", { round: 1, exchange: 0 }, 4);
  session.take("assign", { round: 0, exchange: 0 }, 5);
  happened("work 1", "upload 1", "upload 1");
  session.tick(7.9);
  session.tick(8);
  happened("upload 1");
  session.take("receipt", { round: 0, exchange: 0 }, 9);
  session.tick(16);
  happened("upload 1");
  session.take("receipt", { round: 1, exchange: 0 }, 17);
  session.tick(76);
  happened();
  session.tick(77);
  happened("hello");
  session.take("assign", { round: 1, exchange: 0 }, 78); // our receipt came from a coordinator that forgot
  happened("upload 1");
  session.take("coordinator-status", { state: "ready", epoch: 2 }, 79);
  happened("hello", "upload 1");
  session.take("assign", { round: 2, exchange: 0, closing: true }, 80);
  session.take("receipt", { round: 2, exchange: 0, closing: true }, 81);
  happened("work 2", "upload 2", "done ");
});
