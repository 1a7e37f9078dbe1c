"use strict";
// Line charts as SVG, in the pixels that they have on the screen; colours come from the style sheet.
const noisescaleCharts = (() => {
  const SVG = "http://www.w3.org/2000/svg", HEIGHT = 284;
  const MARGIN = { left: 48, right: 18, top: 12, bottom: 48 };

  const add = (parent, name, attributes = {}, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  // Axes { low, high, ticks, log, label, words } on an emptied svg; what draws into it.
  const axes = (svg, x, y) => {
    const width = Math.max(svg.parentElement.clientWidth, 240);
    svg.replaceChildren();
    svg.setAttribute("width", width);
    svg.setAttribute("height", HEIGHT);
    const box = {
      left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom,
    };
    const scale = ({ low, high, log }, from, to) => {
      const f = log ? Math.log : (v) => v;
      return (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
    };
    const atX = scale(x, box.left, box.right), atY = scale(y, box.bottom, box.top);
    for (const tick of x.ticks) {
      const at = atX(tick);
      add(svg, "line", { x1: at, x2: at, y1: box.top, y2: box.bottom, class: "grid" });
      add(svg, "text", { x: at, y: box.bottom + 22, "text-anchor": "middle" }, x.words(tick));
    }
    for (const tick of y.ticks) {
      const at = atY(tick);
      add(svg, "line", { x1: box.left, x2: box.right, y1: at, y2: at, class: "grid" });
      add(svg, "text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, y.words(tick));
    }
    const middle = (box.left + box.right) / 2;
    add(svg, "text", { x: middle, y: HEIGHT - 8, "text-anchor": "middle" }, x.label);
    return { svg, box, atX, atY };
  };

  const line = ({ svg, atX, atY }, points, kind) => {
    if (points.length < 2) return;
    const path = points.map(([x, y], k) => `${k ? "L" : "M"}${atX(x).toFixed(1)} ${atY(y).toFixed(1)}`);
    add(svg, "path", { d: path.join(""), class: `line ${kind}` });
  };

  // Training and test curves of one run: states { step, train, test } of `metric`.
  const curves = (svg, states, metric, steps) => {
    const values = states.flatMap(({ train, test }) => [train[metric], test[metric]])
      .filter(Number.isFinite);
    const high = metric === "accuracy" ? 1 : Math.max(1, Math.ceil(Math.max(2.5, ...values)));
    const words = (v) => (metric === "accuracy" ? `${Math.round(100 * v)} %` : String(v));
    const part = high <= 5 ? 1 : Math.ceil(high / 5);
    const ticks = metric === "accuracy" ? [0, 0.2, 0.4, 0.6, 0.8, 1]
      : Array.from({ length: Math.floor(high / part) + 1 }, (_, k) => k * part);
    const decades = [1, 10, 100, 1000].filter((step) => step <= steps);
    const frame = axes(svg,
      { low: 1, high: steps, log: true, ticks: decades, label: "updates", words: String },
      { low: 0, high, ticks, words });
    // The legend keeps out of the curves' way: accuracies end at the top, cross-entropies below.
    const { right, top, bottom } = frame.box, legend = metric === "accuracy" ? bottom - 36 : top + 12;
    [["train", "training"], ["test", "test"]].forEach(([set, label], k) => {
      const finite = states.filter((state) => Number.isFinite(state[set][metric]));
      line(frame, finite.map((state) => [state.step, state[set][metric]]), set);
      const y = legend + 18 * k;
      add(svg, "line", { x1: right - 92, x2: right - 68, y1: y, y2: y, class: `line ${set}` });
      add(svg, "text", { x: right - 62, y: y + 4 }, label);
    });
  };

  // Accuracy against B: points { batchSize, accuracy, own, title }, the `means` of the own ones, the
  // law's best size and the size that is set now. What lies lower than the picture stands on its
  // bottom as a triangle.
  const peak = (svg, { points, means, best, now, largest }) => {
    const top = (some) => Math.max(...some.map((point) => point.accuracy));
    const own = points.filter((point) => point.own);
    const all = points.length ? top(points) : 0.87, reached = own.length ? top(own) : all;
    const span = all - reached + 0.12, step = span <= 0.16 ? 0.02 : span <= 0.4 ? 0.05 : 0.1;
    const first = Math.max(0, Math.floor((reached - 0.1) / step));
    const last = Math.min(Math.ceil((all + 0.005) / step), Math.round(1 / step));
    const low = first * step, high = last * step;
    const ticks = Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step);
    const sizes = [1, 4, 16, 64, 256, 1000].filter((size) => size <= largest);
    const frame = axes(svg,
      { low: 0.9, high: 1.1 * largest, log: true, ticks: sizes, label: "batch size B", words: String },
      { low, high, ticks, words: (v) => `${Math.round(100 * v)} %` });
    const { box, atX, atY } = frame, inside = (x) => Math.min(Math.max(x, box.left), box.right);
    const from = inside(atX(best.low)), to = inside(atX(best.high)), at = atX(best.value);
    add(svg, "rect", { x: from, width: to - from, y: box.top, height: box.bottom - box.top,
      class: "band" });
    if (at > box.left && at < box.right) {
      add(svg, "line", { x1: at, x2: at, y1: box.top, y2: box.bottom, class: "line law" });
    }
    const left = from > box.left + 60;
    add(svg, "text", { x: left ? from - 6 : to + 6, y: box.top + 14,
      "text-anchor": left ? "end" : "start", class: "law" }, "the law");
    add(svg, "path", { d: `M${atX(now)} ${box.bottom}l6 9h-12z`, class: "now" });
    const clip = add(add(svg, "clipPath", { id: "playground-clip" }), "rect", { x: box.left, y: box.top,
      width: box.right - box.left, height: box.bottom - box.top });
    const above = add(svg, "g", { "clip-path": `url(#${clip.parentElement.id})` });
    line({ ...frame, svg: above }, means, "means");
    for (const point of points) {
      const x = atX(point.batchSize), kind = `point ${point.own ? "own" : "other"}`;
      const made = point.accuracy < low
        ? add(svg, "path", { d: `M${x} ${box.bottom - 2}l5 -9h-10z`, class: kind })
        : add(svg, "circle", { cx: x, cy: atY(point.accuracy), r: 4, class: kind });
      add(made, "title", {}, point.title);
    }
  };

  // The first images as they are trained on, side by side.
  const digits = (canvas, packed, pixels) => {
    const side = Math.sqrt(pixels), count = Math.floor(canvas.width / side);
    const context = canvas.getContext("2d"), image = context.createImageData(count * side, side);
    for (let i = 0; i < count; i += 1) {
      for (let p = 0; p < pixels; p += 1) {
        const byte = packed[(i * pixels + p) >> 1], level = p & 1 ? byte & 15 : byte >> 4;
        const at = 4 * (Math.floor(p / side) * count * side + i * side + (p % side));
        image.data.fill(17 * level, at, at + 3);
        image.data[at + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
  };

  return { curves, peak, digits };
})();
