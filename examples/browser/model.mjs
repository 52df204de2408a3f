// Softmax regression: one row of weights for each class, the bias as its last number.

export class Softmax {
  constructor(classes, width) {
    [this.classes, this.width] = [classes, width];
    this.rows = new Float32Array(classes * (width + 1)); // (k, d + 1)
  }

  /** Probabilities of the classes for one sample x of `width` numbers. */
  predict(x) {
    const logits = Array.from({ length: this.classes }, (_, k) => {
      const row = this.rows.subarray(k * (this.width + 1), (k + 1) * (this.width + 1));
      return row[this.width] + x.reduce((sum, value, i) => sum + value * row[i], 0);
    });
    const most = Math.max(...logits);
    const powers = logits.map((logit) => Math.exp(logit - most));
    const total = powers.reduce((sum, power) => sum + power, 0);
    return powers.map((power) => power / total);
  }

  /** One step on the cross-entropy of a mini-batch of {x, y}. */
  step(batch, rate) {
    for (const { x, y } of batch) {
      this.predict(x).forEach((p, k) => {
        const slope = (rate * (p - (k === y ? 1 : 0))) / batch.length;
        const at = k * (this.width + 1);
        x.forEach((value, i) => (this.rows[at + i] -= slope * value));
        this.rows[at + this.width] -= slope;
      });
    }
  }

  /** The share of samples that it gets right. */
  accuracy(samples) {
    const right = samples.filter(({ x, y }) => {
      const p = this.predict(x);
      return p.indexOf(Math.max(...p)) === y;
    });
    return right.length / samples.length;
  }
}
