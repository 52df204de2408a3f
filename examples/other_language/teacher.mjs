// A model that only predicts: the nearest class mean.

import { readFileSync } from "node:fs";

/**
 * Read what make_teacher.py wrote:
 *   public: {dtype, shape, base64}, one sample after the other
 *   means:  one list of raw values for each class
 *   sharpness: how fast logits fall with the squared distance
 */
export function loadTeacher(path) {
  const { public: set, means, sharpness } = JSON.parse(readFileSync(path, "utf8"));
  const bytes = Buffer.from(set.base64, "base64");
  const width = set.shape.slice(1).reduce((a, b) => a * b, 1);
  if (set.dtype !== "|u1" || bytes.length !== set.shape[0] * width) throw new Error(`${path}: not a public set of bytes`);
  return {
    classes: means.length,
    public: { dtype: set.dtype, shape: set.shape, bytes, count: set.shape[0] },
    logits: (indices) => indices.map((n) => score(bytes.subarray(n * width, (n + 1) * width), means, sharpness)),
  };
}

/** -sharpness * |x - mean|^2 for each class. */
function score(sample, means, sharpness) {
  return means.map((mean) => -sharpness * mean.reduce((sum, value, at) => sum + (sample[at] - value) ** 2, 0));
}
