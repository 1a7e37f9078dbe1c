"use strict";
// The playground's controls: settings, the queue of runs for the worker, and what came of them.
(() => {
  const setup = JSON.parse(document.getElementById("playground-setup").textContent);
  const { defaults, law, steps, hidden, pixels, classes } = setup;
  const part = (name) => document.getElementById(`playground-${name}`);
  const rule = noisescaleRule, charts = noisescaleCharts;
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // Sliders count through lists of values, evenly spaced in the logarithm.
  const ladder = (count, at) => [...new Set(Array.from({ length: count }, (_, k) => at(k)))];
  const SIZES = ladder(40, (k) => Math.round(2 ** (k / 4)));
  const SWEPT = ladder(15, (k) => Math.round(2 ** (1 + k / 2)));
  const VALUES = {
    batchSize: ({ nTrain }) => [...SIZES.filter((size) => size < nTrain), nTrain],
    learningRate: () => ladder(71, (k) => Number((10 ** (k / 20 - 3)).toPrecision(2))),
    momentum: () => [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975],
    nTrain: () => [100, 150, 200, 250, 300, 400, 500, 600, 700, 800, 900, 1000],
  };
  const NAMES = Object.keys(VALUES);

  let settings = { ...defaults }, kept = null; // kept: what the linear rule holds on to, if anything
  let queue = [], running = null, paused = false, count = 0, worker = null;
  let runs = [], states = [], shown = null; // shown: the settings whose curves are drawn

  const number = (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5)
    ? v.toExponential(2) : String(Number(v.toPrecision(3))));
  const percent = (v) => `${(100 * v).toFixed(1)} %`;
  const say = (words) => { part("status").textContent = words; };
  const same = (a, b) => NAMES.every((name) => a[name] === b[name]);
  const described = ({ batchSize, learningRate, momentum, nTrain }) =>
    `B = ${batchSize}, ε = ${number(learningRate)}, m = ${number(momentum)}, N = ${nTrain}`;

  // Runs that are compared: those that differ in B alone, or, while g is kept, those on as many images
  // whose g is the same but for B's rounding.
  const comparable = (a, b) => a.nTrain === b.nTrain && (kept === null
    ? a.learningRate === b.learningRate && a.momentum === b.momentum
    : Math.abs(rule.level(a) / rule.level(b) - 1) < 0.1);

  const meansBySize = (at) => {
    const bySize = new Map();
    for (const run of runs.filter((other) => comparable(other.settings, at))) {
      const { batchSize } = run.settings;
      bySize.set(batchSize, [...(bySize.get(batchSize) ?? []), run.accuracy]);
    }
    const mean = (values) => values.reduce((a, b) => a + b) / values.length;
    return [...bySize].map(([size, values]) => [size, mean(values)]).sort((a, b) => a[0] - b[0]);
  };

  const showSettings = () => {
    for (const name of NAMES) {
      const slider = part(name), values = VALUES[name](settings), value = settings[name];
      const far = (v) => Math.abs(name === "momentum" ? v - value : Math.log(v / value));
      slider.max = values.length - 1;
      slider.value = values.reduce((best, v, k) => (far(v) < far(values[best]) ? k : best), 0);
      slider.setAttribute("aria-valuetext", number(value));
      part(`${name}-value`).textContent = number(value);
    }
    const best = rule.bestBatch(law, settings, steps), { batchSize, nTrain } = settings;
    part("g").textContent = number(rule.noiseScale(settings));
    part("level").textContent = number(rule.level(settings));
    part("effective").textContent = number(rule.effective(settings));
    part("epochs").textContent = number((steps * batchSize) / nTrain);
    part("best").textContent = `${number(best.value)} [${number(best.low)}, ${number(best.high)}], `
      + `bound by ${best.branch}`;
    showPeak();
  };

  const showPeak = () => charts.peak(part("peak"), {
    points: runs.map((run) => ({
      batchSize: run.settings.batchSize, accuracy: run.accuracy, own: comparable(run.settings, settings),
      title: `${described(run.settings)}: ${run.diverged ? "diverged" : percent(run.accuracy)}`,
    })).sort((a, b) => a.own - b.own),
    means: meansBySize(settings),
    best: rule.bestBatch(law, settings, steps),
    now: settings.batchSize,
    largest: 1000,
  });

  const showCurves = () => {
    charts.curves(part("curves"), states, part("metric").value, steps);
    part("curves-of").textContent = shown ? `The run at ${described(shown)}.` : "No run yet.";
  };

  const showButtons = () => {
    part("pause").textContent = paused ? "Continue" : "Pause";
    part("pause").setAttribute("aria-disabled", String(running === null));
    part("progress").value = running === null ? 0 : running.step / steps;
    part("waiting").textContent = queue.length ? `${queue.length} more to run` : "";
  };

  const showTable = () => {
    const rows = [];
    for (const run of runs) {
      const row = rows.find((other) => same(other.settings, run.settings));
      if (row) row.all.push(run);
      else rows.push({ settings: run.settings, all: [run] });
    }
    const by = (a, b) => a.settings.batchSize - b.settings.batchSize;
    part("table").replaceChildren(...rows.sort(by).map(({ settings: at, all }) => {
      const mean = (name) => percent(all.reduce((sum, run) => sum + run[name], 0) / all.length);
      const failed = all.filter((run) => run.diverged).length;
      const cells = [at.batchSize, number(at.learningRate), number(at.momentum), at.nTrain,
        number(rule.noiseScale(at)), failed ? `${all.length}, ${failed} diverged` : all.length,
        mean("trainAccuracy"), mean("accuracy")];
      const tr = document.createElement("tr");
      tr.append(...cells.map((cell, k) => {
        const made = document.createElement(k ? "td" : "th");
        if (!k) made.scope = "row";
        made.textContent = cell;
        return made;
      }));
      return tr;
    }));
  };

  const summary = (run) => {
    const means = meansBySize(run.settings), told = run.diverged
      ? `${described(run.settings)}: the cost is no longer finite, which counts as guessing.`
      : `${described(run.settings)}: test accuracy ${percent(run.accuracy)}, training `
        + `${percent(run.trainAccuracy)}, ${run.updates} updates in ${number(run.seconds)} s.`;
    if (means.length < 2) return told;
    const [size, accuracy] = means.reduce((a, b) => (b[1] > a[1] ? b : a));
    return `${told} Best of ${means.length} batch sizes so far: ${size}, with ${percent(accuracy)}.`;
  };

  const hear = ({ data: { id, step, seconds, state, finished, paused: halted } }) => {
    if (running === null || id !== running.id) return; // of a run that was stopped
    running.step = step;
    if (halted) say(`Paused after ${step} of ${steps} updates at ${described(running.settings)}.`);
    if (state) states.push(state);
    if (finished) {
      finish({ settings: running.settings, diverged: state.diverged, seconds, updates: step,
        accuracy: state.diverged ? 1 / classes : state.test.accuracy,
        trainAccuracy: state.diverged ? 1 / classes : state.train.accuracy });
    } else if (state && !still.matches) {
      showCurves();
    }
    showButtons();
  };

  const finish = (run) => {
    runs.push(run);
    running = null;
    showCurves();
    showPeak();
    showTable();
    say(summary(run));
    next();
  };

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const open = () => {
    const address = URL.createObjectURL(new Blob([setup.worker], { type: "text/javascript" }));
    const made = new Worker(address);
    made.addEventListener("message", hear);
    made.addEventListener("error", (problem) => {
      problem.preventDefault();
      say(`This browser does not let the page train in the background: ${problem.message}`);
    });
    const images = ({ packed, labels }) => ({ packed: bytes(packed), labels: bytes(labels) });
    const { train, test } = setup;
    made.postMessage({ images: { train: images(train), test: images(test), pixels, classes } });
    return made;
  };

  const next = () => {
    if (running !== null || paused || !queue.length) return;
    worker ??= open();
    const at = queue.shift(), seed = runs.filter((run) => same(run.settings, at)).length;
    count += 1;
    running = { id: count, settings: at, step: 0 };
    states = [];
    shown = at;
    worker.postMessage({ id: count, settings: { ...at, seed }, hidden, steps });
  };

  const enqueue = (wanted) => {
    queue.push(...wanted);
    if (paused) pause(false);
    next();
    showButtons();
  };

  const pause = (on) => {
    paused = on;
    worker.postMessage({ pause: on });
    next();
    showButtons();
  };

  const change = (name, value) => {
    const wanted = { ...settings, [name]: value };
    if (kept === null) {
      settings = { ...wanted, batchSize: Math.min(wanted.batchSize, wanted.nTrain) };
    } else {
      const { recipe, refusal } = rule.keeping(kept, wanted, name);
      if (recipe) settings = recipe;
      say(refusal ?? `g is kept: ${described(settings)}.`);
    }
    showSettings();
  };

  for (const name of NAMES) {
    part(name).addEventListener("input", () => change(name, VALUES[name](settings)[part(name).value]));
  }
  part("keep").addEventListener("change", () => {
    kept = part("keep").checked ? rule.level(settings) : null;
    showSettings();
  });
  part("run").addEventListener("click", () => enqueue([{ ...settings }]));
  part("sweep").addEventListener("click", () => enqueue(
    SWEPT.filter((size) => size <= settings.nTrain / 2).map((batchSize) => {
      const at = { ...settings, batchSize };
      return kept === null ? at : rule.keeping(kept, at, "batchSize").recipe;
    }),
  ));
  part("pause").addEventListener("click", () => { if (running !== null) pause(!paused); });
  part("reset").addEventListener("click", () => {
    worker?.postMessage({ stop: true });
    [queue, runs, states, running, shown, kept] = [[], [], [], null, null, null];
    if (paused) pause(false);
    settings = { ...defaults };
    part("keep").checked = false;
    showAll();
    say("Everything is as it was at the beginning.");
  });
  part("metric").addEventListener("change", showCurves);

  const showAll = () => {
    showSettings();
    showCurves();
    showTable();
    showButtons();
  };
  charts.digits(part("digits"), bytes(setup.train.packed), pixels);
  new ResizeObserver(() => { showPeak(); showCurves(); }).observe(part("peak").parentElement);
  showAll();
})();
