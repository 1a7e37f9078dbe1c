"""How long the playground takes: 200 updates by batch size, and an evaluation, in Node on one core.

    python benchmarks/playground.py

The page is to make 200 updates in under a second at the batch sizes near the best one. Chromium's
worker runs the same code on the same engine.
"""

import json
import shutil
import subprocess
import sys
from importlib import resources

from noisescale.paper.report.playground.digits import SIDE, packed, small_digits
from noisescale.paper.report.playground.law import HIDDEN

SIZES = (8, 28, 64, 128, 256, 512)

MEASURE = """
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const { pixels } = given;
const images = ({ packed, labels }) => noisescale.unpack(bytes(packed), bytes(labels), pixels);
const data = { pixels, classes: 10, train: images(given.train), test: images(given.test) };
const measure = (work) => {
  const began = process.cpuUsage().user;
  work();
  return (process.cpuUsage().user - began) / 1e6;
};
const rows = [given.sizes[0], ...given.sizes].map((batchSize) => {
  const settings = { learningRate: 0.2, momentum: 0.9, nTrain: 1000, batchSize, seed: 0 };
  const run = noisescale.start(data, given.hidden, settings);
  return [batchSize, measure(() => run.advance(200)), measure(() => run.state())];
});
process.stdout.write(JSON.stringify(rows.slice(1))); // the first one was compiled on the way
"""


def main() -> None:
    node = shutil.which("node")
    if node is None:
        sys.exit("the playground's speed is measured in Node: install it first.")
    data = small_digits()
    given = {
        "pixels": SIDE * SIDE,
        "hidden": HIDDEN,
        "sizes": SIZES,
        "train": packed(data.x_train, data.y_train),
        "test": packed(data.x_test, data.y_test),
    }
    core = (resources.files("noisescale.paper.report.playground") / "core.js").read_text("utf-8")
    script = f"{core}\nconst given = {json.dumps(given)};\n{MEASURE}"
    done = subprocess.run([node, "-"], input=script, capture_output=True, encoding="utf-8")
    if done.returncode:
        sys.exit(done.stderr)
    print(f"{'B':>5} {'200 updates':>12} {'an evaluation':>14}   (CPU seconds)")
    for size, updates, evaluation in json.loads(done.stdout):
        print(f"{size:5} {updates:12.3f} {evaluation:14.3f}")


if __name__ == "__main__":
    main()
