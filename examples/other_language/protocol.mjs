// Frames, bodies, tensors, topics and public batches: docs/reference/protocol.md as functions.

import { createHash } from "node:crypto";
import { crc32 } from "node:zlib";
import { decode, encode } from "@msgpack/msgpack";

const HEADER_BYTES = 48;
const SIGNATURE_BYTES = 64;
const CRC_AT = 12;
const LARGEST_FRAME_BYTES = 16 * 1024 * 1024; // far above the limit of a federation with small batches
const SHARDS = 16;

/** The peer broke the protocol; `kind` is one of the page's refusal words. */
export class Illegal extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** The frame of a message: tag, fields, and {bootEpoch, sequence}. */
export function encodeFrame(tag, fields, stamp) {
  const body = encode([tag, fields]);
  const header = Buffer.alloc(HEADER_BYTES);
  header.write("EDGK", 0, "ascii");
  header.writeUInt8(1, 4);
  header.writeUInt32LE(body.length, 8);
  header.writeBigUInt64LE(BigInt(stamp.bootEpoch), 32);
  header.writeBigUInt64LE(BigInt(stamp.sequence), 40);
  header.writeUInt32LE(crc32(body, crc32(header)), CRC_AT);
  return Buffer.concat([header, body]);
}

/** {tag, fields} of a frame; throws Illegal, and nothing else. */
export function decodeFrame(frame) {
  const body = openFrame(Buffer.from(frame));
  const [tag, fields] = unpack(body);
  if (typeof tag !== "string" || fields === null || typeof fields !== "object") {
    throw new Illegal("schema", "the body is not [tag, {fields}]");
  }
  return { tag, fields };
}

function openFrame(frame) {
  if (frame.length > LARGEST_FRAME_BYTES) throw new Illegal("limit", `a frame of ${frame.length} bytes`);
  if (frame.subarray(0, 4).toString("latin1") !== "EDGK" || frame.length < 5) throw new Illegal("magic", "not a frame");
  if (frame[4] !== 1) throw new Illegal("version", `frame version ${frame[4]}, this side speaks 1`);
  if (frame.length < HEADER_BYTES) throw new Illegal("length", "shorter than its header");
  if (frame[5] & ~1 || frame.readUInt16LE(6)) throw new Illegal("version", "flags or reserved bytes of a later version");
  const start = HEADER_BYTES + (frame[5] & 1 ? SIGNATURE_BYTES : 0);
  if (frame.length !== start + frame.readUInt32LE(8)) throw new Illegal("length", "not as long as its header says");
  const header = Buffer.from(frame.subarray(0, HEADER_BYTES));
  const body = frame.subarray(start);
  header.fill(0, CRC_AT, CRC_AT + 4);
  if (crc32(body, crc32(header)) !== frame.readUInt32LE(CRC_AT)) throw new Illegal("checksum", "damaged on its way");
  return body;
}

function unpack(body) {
  try {
    const value = decode(body);
    return Array.isArray(value) && value.length === 2 ? value : [];
  } catch (error) {
    throw new Illegal("msgpack", String(error.message));
  }
}

/** A tensor of type f4 from rows of numbers: [dtype, extents, bytes]. */
export function tensorF4(rows) {
  const width = rows[0].length;
  const bytes = Buffer.alloc(4 * rows.length * width);
  rows.flat().forEach((value, at) => bytes.writeFloatLE(value, 4 * at));
  return ["f4", [rows.length, width], bytes];
}

/** The topic of what a device sends: kind is hello, upd or bye. */
export function upTopic(federation, device, kind) {
  const shard = crc32(Buffer.from(device, "utf8")) % SHARDS;
  return `fl/v1/${federation}/up/${shard}/${device}/${kind}`;
}

/** The topic of a device's retained status. */
export const statusTopic = (federation, device) => `fl/v1/${federation}/st/${device}`;

/** What a device listens to. */
export const subscriptions = (federation, device) => [`fl/v1/${federation}/dn/${device}/+`, `fl/v1/${federation}/coord`];

/** The name of a public set: {dtype: "|u1" or "<f4", shape, bytes} -> 32 bytes. */
export function publicName({ dtype, shape, bytes }) {
  return createHash("sha256").update(`${dtype}(${shape.join(", ")})`, "ascii").update(bytes).digest();
}

/** Which samples a batch has: `size` indices below `count`. */
export function drawBatch({ seed, round, iteration, size, count }) {
  const words = drawWords(`public/${seed}/${round}/${iteration}`, size);
  if (size > count) return words.map((word) => Number(word % BigInt(count)));
  const moved = new Map(); // the few places of 0..count-1 that a swap has touched
  return words.map((word, i) => {
    const j = i + Number(word % BigInt(count - i));
    const drawn = moved.get(j) ?? j;
    moved.set(j, moved.get(i) ?? i);
    return drawn;
  });
}

function drawWords(name, count) {
  const words = [];
  for (let block = 0; words.length < count; block++) {
    const digest = createHash("sha256").update(`${name}/${block}`, "ascii").digest();
    for (let at = 0; at < digest.length; at += 8) words.push(digest.readBigUInt64LE(at));
  }
  return words.slice(0, count);
}

/** The name of a batch: 8 bytes. */
export function batchDigest(name, indices) {
  const bytes = Buffer.alloc(8 * indices.length);
  indices.forEach((index, at) => bytes.writeBigInt64LE(BigInt(index), 8 * at));
  return createHash("sha256").update(name).update(bytes).digest().subarray(0, 8);
}
