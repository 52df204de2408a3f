// Frames, bodies, tensors and topics with what a browser has: docs/reference/protocol.md as functions.

const { decode, encode } = globalThis.MessagePack; // vendor/msgpack.min.js

const HEADER_BYTES = 48;
const SIGNATURE_BYTES = 64;
const CRC_AT = 12;
const LARGEST_FRAME_BYTES = 16 * 1024 * 1024;
const SHARDS = 16;

/** The peer broke the protocol; `kind` is one of the page's refusal words. */
export class Illegal extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** The frame of a message: tag, fields, and {bootEpoch, sequence}. */
export function encodeFrame(tag, fields, { bootEpoch, sequence }) {
  const body = encode([tag, fields]);
  const frame = new Uint8Array(HEADER_BYTES + body.length);
  const view = new DataView(frame.buffer);
  frame.set(new TextEncoder().encode("EDGK"));
  view.setUint8(4, 1);
  view.setUint32(8, body.length, true);
  view.setBigUint64(32, BigInt(bootEpoch), true);
  view.setBigUint64(40, BigInt(sequence), true);
  frame.set(body, HEADER_BYTES);
  view.setUint32(CRC_AT, crc32(frame), true);
  return frame;
}

/** {tag, fields} of a frame; throws Illegal, and nothing else. */
export function decodeFrame(bytes) {
  const frame = Uint8Array.from(bytes);
  const view = new DataView(frame.buffer);
  if (frame.length > LARGEST_FRAME_BYTES) throw new Illegal("limit", `a frame of ${frame.length} bytes`);
  if (String.fromCharCode(...frame.subarray(0, 4)) !== "EDGK") throw new Illegal("magic", "not a frame");
  if (frame[4] !== 1) throw new Illegal("version", `frame version ${frame[4]}, this side speaks 1`);
  if (frame.length < HEADER_BYTES) throw new Illegal("length", "shorter than its header");
  if (frame[5] & ~1 || view.getUint16(6)) throw new Illegal("version", "flags or reserved bytes of a later version");
  const start = HEADER_BYTES + (frame[5] & 1 ? SIGNATURE_BYTES : 0);
  if (frame.length !== start + view.getUint32(8, true)) throw new Illegal("length", "not as long as its header says");
  const told = view.getUint32(CRC_AT, true);
  view.setUint32(CRC_AT, 0);
  if (crc32(frame.subarray(start), crc32(frame.subarray(0, HEADER_BYTES))) !== told) {
    throw new Illegal("checksum", "damaged on its way");
  }
  return unpack(frame.subarray(start));
}

function unpack(body) {
  let value;
  try {
    value = decode(body);
  } catch (error) {
    throw new Illegal("msgpack", String(error.message));
  }
  const [tag, fields] = Array.isArray(value) && value.length === 2 ? value : [];
  if (typeof tag !== "string" || fields === null || typeof fields !== "object") {
    throw new Illegal("schema", "the body is not [tag, {fields}]");
  }
  return { tag, fields };
}

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

/** CRC-32 of bytes, going on from that of the bytes before. */
export function crc32(bytes, before = 0) {
  let crc = ~before;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

/** A tensor of numbers: dtype is f4 or i4; the bytes of typed arrays are little-endian wherever a browser runs. */
export function tensor(dtype, extents, numbers) {
  const array = dtype === "f4" ? Float32Array.from(numbers) : Int32Array.from(numbers);
  return [dtype, extents, new Uint8Array(array.buffer)];
}

/** {extents, numbers} of a tensor of type f4 or i4. */
export function readTensor([dtype, extents, bytes]) {
  const own = Uint8Array.from(bytes).buffer;
  return { extents, numbers: dtype === "f4" ? new Float32Array(own) : new Int32Array(own) };
}

/** The topic of what a device sends: kind is hello, upd or bye. */
export function upTopic(federation, device, kind) {
  return `fl/v1/${federation}/up/${crc32(new TextEncoder().encode(device)) % SHARDS}/${device}/${kind}`;
}

/** The topic of a device's retained status. */
export const statusTopic = (federation, device) => `fl/v1/${federation}/st/${device}`;

/** What a device listens to. */
export const subscriptions = (federation, device) => [`fl/v1/${federation}/dn/${device}/+`, `fl/v1/${federation}/coord`];
