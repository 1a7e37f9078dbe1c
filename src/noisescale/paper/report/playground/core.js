"use strict";
// SGD as the library runs it: A <- m A + grad, w <- w - ε A, for a network of one hidden layer with
// ReLU and softmax. Plain functions and typed arrays: the page, its worker and Node share this file.
const noisescale = (() => {
  // Mulberry32: 32 bits of state, enough for runs of this size, and the same in every browser.
  const random = (seed) => {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  };

  // A stream of its own for each purpose of a run, as in the library's seeds.py.
  const stream = (seed, purpose) => random(Math.imul(seed + 1, 0x9e3779b1) ^ purpose);
  const SUBSET = 1, INITIALISATION = 2, BATCHES = 3;

  // Images: one byte holds two pixels of 0 to 15. Only pixels that are not 0 are kept, because most
  // are: example i has pixels at[start[i]] ... at[start[i + 1] - 1] with these values.
  const unpack = (packed, labels, pixels) => {
    const n = labels.length, start = new Int32Array(n + 1);
    const at = new Uint16Array(n * pixels), value = new Float32Array(n * pixels);
    let k = 0;
    for (let i = 0; i < n; i += 1) {
      for (let p = 0; p < pixels; p += 1) {
        const place = i * pixels + p, byte = packed[place >> 1];
        const level = place & 1 ? byte & 15 : byte >> 4;
        if (level) {
          at[k] = p;
          value[k] = level / 15;
          k += 1;
        }
      }
      start[i + 1] = k;
    }
    return { n, start, at: at.slice(0, k), value: value.slice(0, k), label: Uint8Array.from(labels) };
  };

  const network = (inputs, hidden, classes) => ({
    inputs, hidden, classes,
    w1: new Float32Array(inputs * hidden), b1: new Float32Array(hidden),
    w2: new Float32Array(hidden * classes), b2: new Float32Array(classes),
  });
  const ARRAYS = ["w1", "b1", "w2", "b2"];

  const glorotUniform = (net, next) => {
    for (const [name, a, b] of [["w1", net.inputs, net.hidden], ["w2", net.hidden, net.classes]]) {
      const reach = Math.sqrt(6 / (a + b)), w = net[name];
      for (let k = 0; k < w.length; k += 1) w[k] = (2 * next() - 1) * reach;
    }
    return net;
  };

  // The layers' outputs for example i, in `work`: a is the hidden layer, p the probabilities. Returns
  // the example's cross-entropy. Hidden units come four at a time, which takes half the time, so
  // there must be a multiple of four.
  const forward = (net, images, i, work) => {
    const { hidden, classes, w1, b1, w2, b2 } = net, { a, p } = work;
    for (let j = 0; j < hidden; j += 1) a[j] = b1[j];
    for (let k = images.start[i]; k < images.start[i + 1]; k += 1) {
      const v = images.value[k], row = images.at[k] * hidden;
      for (let j = 0; j < hidden; j += 4) {
        const at = row + j;
        a[j] += v * w1[at];
        a[j + 1] += v * w1[at + 1];
        a[j + 2] += v * w1[at + 2];
        a[j + 3] += v * w1[at + 3];
      }
    }
    for (let c = 0; c < classes; c += 1) p[c] = b2[c];
    for (let j = 0; j < hidden; j += 1) {
      if (a[j] <= 0) { // not so if it is NaN, which must be seen
        a[j] = 0;
      } else {
        const v = a[j], row = j * classes;
        for (let c = 0; c < classes; c += 1) p[c] += v * w2[row + c];
      }
    }
    let top = p[0];
    for (let c = 1; c < classes; c += 1) if (p[c] > top) top = p[c];
    const own = p[images.label[i]];
    let sum = 0;
    for (let c = 0; c < classes; c += 1) {
      p[c] = Math.exp(p[c] - top);
      sum += p[c];
    }
    for (let c = 0; c < classes; c += 1) p[c] /= sum;
    return top + Math.log(sum) - own;
  };

  const workspace = (net) => ({
    a: new Float64Array(net.hidden), p: new Float64Array(net.classes), d: new Float64Array(net.hidden),
  });

  const sgd = (net, images, { learningRate, momentum }) => {
    const work = workspace(net), { hidden, classes, w2 } = net, { a, p, d } = work;
    const A = Object.fromEntries(ARRAYS.map((name) => [name, new Float32Array(net[name].length)]));
    const A1 = A.w1;
    // One update by the examples of `batch`; the batch's mean cross-entropy before it.
    return (batch) => {
      const share = 1 / batch.length;
      let cost = 0;
      for (const name of ARRAYS) {
        const part = A[name];
        for (let k = 0; k < part.length; k += 1) part[k] *= momentum;
      }
      for (let n = 0; n < batch.length; n += 1) {
        const i = batch[n];
        cost += forward(net, images, i, work);
        p[images.label[i]] -= 1; // now the derivatives by the logits
        for (let c = 0; c < classes; c += 1) {
          p[c] *= share;
          A.b2[c] += p[c];
        }
        for (let j = 0; j < hidden; j += 1) {
          d[j] = 0;
          if (a[j] > 0) {
            const row = j * classes;
            for (let c = 0; c < classes; c += 1) {
              d[j] += w2[row + c] * p[c];
              A.w2[row + c] += a[j] * p[c];
            }
          }
          A.b1[j] += d[j];
        }
        for (let k = images.start[i]; k < images.start[i + 1]; k += 1) {
          const v = images.value[k], row = images.at[k] * hidden;
          for (let j = 0; j < hidden; j += 4) {
            const at = row + j;
            A1[at] += v * d[j];
            A1[at + 1] += v * d[j + 1];
            A1[at + 2] += v * d[j + 2];
            A1[at + 3] += v * d[j + 3];
          }
        }
      }
      for (const name of ARRAYS) {
        const w = net[name], part = A[name];
        for (let k = 0; k < w.length; k += 1) w[k] -= learningRate * part[k];
      }
      return cost * share;
    };
  };

  // The first `size` of a shuffled `order`, which stays shuffled: every subset is equally likely.
  const draw = (order, size, next) => {
    for (let k = 0; k < size; k += 1) {
      const other = k + Math.floor(next() * (order.length - k)), kept = order[k];
      order[k] = order[other];
      order[other] = kept;
    }
    return order.subarray(0, size);
  };

  const evaluate = (net, images, members) => {
    const work = workspace(net), { p } = work;
    let right = 0, cost = 0;
    for (const i of members) {
      cost += forward(net, images, i, work);
      let best = 0;
      for (let c = 1; c < net.classes; c += 1) if (p[c] > p[best]) best = c;
      if (best === images.label[i]) right += 1;
    }
    return { accuracy: right / members.length, crossEntropy: cost / members.length };
  };

  const everyone = (n) => Int32Array.from({ length: n }, (_, i) => i);

  // A run in progress: advance(n) makes up to n more updates, fewer once the cost is not finite;
  // state() evaluates it.
  const start = (data, hidden, settings) => {
    const { nTrain, batchSize, seed } = settings;
    const net = glorotUniform(network(data.pixels, hidden, data.classes), stream(seed, INITIALISATION));
    const members = draw(everyone(data.train.n), nTrain, stream(seed, SUBSET)).slice();
    const order = members.slice(), next = stream(seed, BATCHES);
    const update = sgd(net, data.train, settings), all = everyone(data.test.n);
    const run = { step: 0, diverged: false };
    run.advance = (n) => {
      for (let k = 0; k < n && !run.diverged; k += 1) {
        run.diverged = !Number.isFinite(update(draw(order, batchSize, next)));
        run.step += 1;
      }
    };
    run.state = () => {
      const train = evaluate(net, data.train, members), test = evaluate(net, data.test, all);
      run.diverged ||= !Number.isFinite(train.crossEntropy + test.crossEntropy);
      return { step: run.step, diverged: run.diverged, train, test };
    };
    return run;
  };

  return { random, unpack, network, glorotUniform, sgd, draw, everyone, evaluate, start, ARRAYS };
})();
