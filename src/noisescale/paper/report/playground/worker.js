"use strict";
// The page's worker. It hears { images } once; { id, settings, hidden, steps } for a run;
// { pause: true } or { pause: false }; { stop: true }. It answers with the step that a run has reached,
// five times a decade of steps, and at the end, with how well it does there.
(() => {
  const SLICE = 25; // milliseconds, after which it listens again
  const RATIO = 10 ** 0.2; // of the steps after which it evaluates
  let data = null, job = null, paused = false, timer = 0;

  const work = () => {
    if (!job || paused) return;
    const began = performance.now(), before = job.seconds, { run } = job;
    while (job && performance.now() - began < SLICE) {
      run.advance(1);
      job.seconds = before + (performance.now() - began) / 1000;
      if (run.diverged || run.step === job.next) tell();
    }
    if (job) postMessage({ id: job.id, step: run.step });
    timer = setTimeout(work, 0);
  };

  const tell = () => {
    const state = job.run.state(), finished = state.diverged || state.step === job.steps;
    postMessage({ id: job.id, step: state.step, seconds: job.seconds, finished, state });
    job.next = Math.min(Math.ceil(job.next * RATIO), job.steps);
    if (finished) job = null;
  };

  const resume = () => {
    clearTimeout(timer);
    timer = setTimeout(work, 0);
  };

  addEventListener("message", ({ data: message }) => {
    if (message.images) {
      const { train, test, pixels, classes } = message.images;
      const images = ({ packed, labels }) => noisescale.unpack(packed, labels, pixels);
      data = { pixels, classes, train: images(train), test: images(test) };
    } else if (message.settings) {
      const { id, settings, hidden, steps } = message;
      job = { id, run: noisescale.start(data, hidden, settings), steps, next: 1, seconds: 0 };
      resume();
    } else if ("pause" in message) {
      paused = message.pause;
      if (paused && job) postMessage({ id: job.id, step: job.run.step, paused });
      resume();
    } else {
      job = null;
    }
  });
})();
