// node --test: the page's side of the protocol against the bytes that the project promises to keep permanently.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";

globalThis.MessagePack = createRequire(import.meta.url)("./vendor/msgpack.min.js");
const { Illegal, decodeFrame, encodeFrame, readTensor, tensor, upTopic } = await import("./protocol.mjs");

const GOLDEN = new URL("../../tests/protocol/golden/", import.meta.url);
const bytes = (name) => Uint8Array.from(Buffer.from(readFileSync(new URL(name, GOLDEN), "ascii").replace(/\s/g, ""), "hex"));

for (const name of readdirSync(GOLDEN).filter((each) => each.endsWith(".hex"))) {
  test(`reads ${name}, and what it writes reads the same`, () => {
    const { tag, fields } = decodeFrame(bytes(name));
    assert.deepEqual(decodeFrame(encodeFrame(tag, fields, { bootEpoch: 1, sequence: 2 })), { tag, fields });
  });
}

test("a damaged frame is refused, whichever byte it is", () => {
  const frame = bytes("receipt.hex");
  for (let at = 0; at < frame.length; at++) {
    const damaged = Uint8Array.from(frame);
    damaged[at] ^= 0x40;
    assert.throws(() => decodeFrame(damaged), Illegal);
  }
  assert.throws(() => decodeFrame(frame.subarray(0, 30)), Illegal);
});

test("a tensor is little-endian, and reads the same", () => {
  const made = tensor("f4", [2, 2], [1, -2, 0.5, 0]);
  assert.equal(Buffer.from(made[2]).toString("hex"), "0000803f000000c00000003f00000000");
  assert.deepEqual(Array.from(readTensor(made).numbers), [1, -2, 0.5, 0]);
});

test("the shard is the CRC-32 of the id, modulo 16", () => {
  assert.equal(upTopic("digits", "browser", "hello").split("/")[4], String(0xda130f3a % 16));
});
