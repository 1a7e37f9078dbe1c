"""What the playground computes: its SGD, its rules and its law are the library's."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import noisescale as ns
from noisescale.errors import InputError
from noisescale.noise.recipe import Recipe
from noisescale.paper.report import playground as package
from noisescale.paper.report.playground import DEFAULTS, calibration, playground_page
from noisescale.paper.report.playground.digits import SIDE, packed, small_digits
from noisescale.paper.report.playground.law import HIDDEN, PLAYGROUND_LAW, STEPS
from noisescale.seeds import random_stream
from noisescale.training.models import DenseNetwork
from noisescale.training.sampling import BatchStream
from oracles import sgd

FOLDER = Path(package.__file__).parent
NETWORK = DenseNetwork((SIDE * SIDE, HIDDEN, 10))


def source(*names):
    return "".join((FOLDER / f"{name}.js").read_text("utf-8") for name in names)


def by_node(code):
    """The value of a JavaScript expression after the playground's own code, in Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node: install Debian's nodejs package")
    script = f"process.stdout.write(JSON.stringify({code}))"
    done = subprocess.run([node, "-"], input=script, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=["node", "chromium"])
def evaluate(request):
    """What computes an expression: Node, and the browser that people have."""
    return by_node if request.param == "node" else request.getfixturevalue("chromium").run


def with_code(names, expression):
    return f"(() => {{ {source(*names)}\nreturn {expression}; }})()"


BYTES = "((text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)))"


class TestSgd:
    @pytest.mark.parametrize(
        ("learning_rate", "momentum", "batch_size", "n_train"),
        [(0.2, 0.9, 32, 1_000), (0.5, 0.0, 3, 300), (0.1, 0.95, 100, 100)],
    )
    def test_twenty_updates_are_the_librarys(
        self, evaluate, learning_rate, momentum, batch_size, n_train
    ):
        data = small_digits()
        x, y = data.x_train[:n_train], data.y_train[:n_train]
        start = NETWORK.init(3)
        settings = {"learning_rate": learning_rate, "momentum": momentum}
        made = ns.train(NETWORK, start, (x, y), batch_size=batch_size, steps=20, seed=5, **settings)
        stream = BatchStream(
            "without_replacement",
            n_train=n_train,
            batch_size=batch_size,
            rng=random_stream(5, "batches"),
        )
        batches = stream.take(20)
        layers = {
            f"{name}{k + 1}": np.asarray(layer[name]).ravel().tolist()
            for k, layer in enumerate(start)
            for name in ("w", "b")
        }
        given = packed(x, y) | {
            "layers": layers,
            "batches": batches.tolist(),
            "rates": {"learningRate": learning_rate, "momentum": momentum},
        }
        done = evaluate(
            with_code(
                ["core"],
                f"""((given) => {{
                const images = noisescale.unpack({BYTES}(given.packed), {BYTES}(given.labels), 196);
                const net = noisescale.network(196, {HIDDEN}, 10);
                for (const name of noisescale.ARRAYS) net[name].set(given.layers[name]);
                const update = noisescale.sgd(net, images, given.rates);
                const costs = given.batches.map((batch) => update(batch));
                const layers = noisescale.ARRAYS.map((name) => [name, [...net[name]]]);
                return {{ costs, layers: Object.fromEntries(layers) }};
                }})({json.dumps(given)})""",
            )
        )
        pairs = [(layer["w"], layer["b"]) for layer in start]
        exact, nearest = sgd.train(
            pairs, x, y, batches, prior_precision=0.0, n_classes_in_unit=1, **settings
        )
        assert nearest > 1e-6  # no hidden unit so near its kink that rounding would decide
        for k, layer in enumerate(made.params):
            for name, true in zip("wb", exact[k], strict=True):
                ours = np.reshape(done["layers"][f"{name}{k + 1}"], true.shape)
                assert np.abs(ours - np.asarray(layer[name])).max() < 1e-5
                assert np.abs(ours - true).max() < 1e-5
        moved = np.abs(exact[0][0] - np.asarray(start[0]["w"])).max()
        assert moved > 0.01  # far more than the tolerance

    def test_the_first_weights_are_glorots(self):
        drawn = by_node(
            with_code(
                ["core"],
                f"""(() => {{
                const net = noisescale.glorotUniform(
                  noisescale.network(196, {HIDDEN}, 10), noisescale.random(11));
                return [[...net.w1], [...net.w2], [...net.b1, ...net.b2]];
                }})()""",
            )
        )
        for w, ends in ((drawn[0], 196 + HIDDEN), (drawn[1], HIDDEN + 10)):
            u = np.array(w) / (6 / ends) ** 0.5  # uniform in [-1, 1]
            assert np.abs(u).max() <= 1 + 1e-6
            assert abs(u.mean()) < 4 * (1 / 3 / len(u)) ** 0.5
            # Var(u^2) = 1/5 - 1/9
            assert abs(np.mean(u**2) - 1 / 3) < 4 * ((1 / 5 - 1 / 9) / len(u)) ** 0.5
        assert not any(drawn[2])

    def test_batches_are_subsets_and_all_alike(self):
        drawn = np.array(
            by_node(
                with_code(
                    ["core"],
                    """(() => {
                const order = noisescale.everyone(6), next = noisescale.random(2);
                return Array.from({ length: 6000 }, () => [...noisescale.draw(order, 2, next)]);
                })()""",
                )
            )
        )
        assert (drawn[:, 0] != drawn[:, 1]).all()
        counts = np.zeros((6, 6))
        np.add.at(counts, (drawn.min(axis=1), drawn.max(axis=1)), 1)
        counts = counts[np.triu_indices(6, 1)]  # of the 15 pairs, 400 each
        chi2 = np.sum((counts - 400) ** 2 / 400)
        assert chi2 < 14 + 4 * (2 * 14) ** 0.5

    def test_a_whole_run_ends_where_the_librarys_do(self):
        """Other random numbers, so compared by means: 4 seeds here, 12 of the library's."""
        data = small_digits()
        at = {"learningRate": 0.2, "momentum": 0.9, "nTrain": 1_000, "batchSize": 39}
        accuracies = by_node(
            with_code(
                ["core"],
                f"""((given, settings) => {{
                const images = ({{ packed, labels }}) =>
                  noisescale.unpack({BYTES}(packed), {BYTES}(labels), 196);
                const data = {{ pixels: 196, classes: 10, train: images(given.train),
                  test: images(given.test) }};
                return [0, 1, 2, 3].map((seed) => {{
                  const run = noisescale.start(data, {HIDDEN}, {{ ...settings, seed }});
                  run.advance({STEPS});
                  return run.state().test.accuracy;
                }});
                }})({
                    json.dumps(
                        {
                            "train": packed(data.x_train, data.y_train),
                            "test": packed(data.x_test, data.y_test),
                        }
                    )
                }, {json.dumps(at)})""",
            )
        )
        runs = calibration().query(
            "learning_rate == 0.2 and momentum == 0.9 and n_train == 1000 and batch_size == 39"
        )
        library = runs["test_accuracy"]
        assert len(library) == 12
        spread = library.std()
        error = spread * (1 / len(library) + 1 / len(accuracies)) ** 0.5
        assert abs(np.mean(accuracies) - library.mean()) < 4 * error
        assert len(set(accuracies)) > 1

    def test_a_run_that_diverges_says_so(self):
        state = by_node(
            with_code(
                ["core"],
                f"""((given) => {{
                const train = noisescale.unpack({BYTES}(given.packed), {BYTES}(given.labels), 196);
                const run = noisescale.start({{ pixels: 196, classes: 10, train, test: train }}, {
                    HIDDEN
                }, {{ learningRate: 1e40, momentum: 0.9, nTrain: 50, batchSize: 5, seed: 0 }});
                run.advance(100);
                const net = noisescale.network(196, {HIDDEN}, 10);
                net.w1.fill(NaN);
                const seen = Number.isNaN(noisescale.evaluate(net, train, [0]).crossEntropy);
                return {{ step: run.step, diverged: run.state().diverged, seen }};
                }})({json.dumps(packed(*(a[:50] for a in small_digits()[:2])))})""",
            )
        )
        assert state["diverged"]
        assert state["seen"]  # a rectifier must not turn what is not a number into 0
        assert state["step"] < 100


CHANGES = [
    ("batchSize", "batch_size", [1, 7, 64, 1_000]),
    ("learningRate", "learning_rate", [0.02, 0.25, 0.7, 3.0]),
    ("momentum", "momentum", [0.0, 0.5, 0.95, 0.975]),
    ("nTrain", "n_train", [100, 250, 900]),
]
FIELDS = {js: python for js, python, _ in CHANGES}


class TestRule:
    def test_noise_scales_are_the_librarys(self):
        recipes = [
            {"learningRate": e, "batchSize": b, "momentum": m, "nTrain": n}
            for e in (0.013, 0.2, 1.7)
            for b in (1, 23, 100)
            for m in (0.0, 0.9, 0.975)
            for n in (100, 700)
        ]
        found = by_node(
            with_code(
                ["rule"],
                f"{json.dumps(recipes)}.map((r) => "
                "[noisescaleRule.noiseScale(r), noisescaleRule.level(r)])",
            )
        )
        for recipe, (exact, linear) in zip(recipes, found, strict=True):
            known = Recipe(**{FIELDS[name]: value for name, value in recipe.items()})
            assert exact == known.noise_scale
            assert linear == known.kept("linear")

    def test_keeping_g_moves_what_the_recipe_moves(self):
        asked = [(js, value) for js, _, values in CHANGES for value in values]
        answers = by_node(
            with_code(
                ["rule"],
                f"""((now) => {json.dumps(asked)}.map(([name, value]) => noisescaleRule.keeping(
                noisescaleRule.level(now), {{ ...now, [name]: value }}, name)))({
                    json.dumps(DEFAULTS)
                })""",
            )
        )
        recipe = Recipe(**{FIELDS[name]: value for name, value in DEFAULTS.items()})
        refused = 0
        for (name, value), answer in zip(asked, answers, strict=True):
            try:
                moved = recipe.scaled_to(**{FIELDS[name]: value}, rule="linear")
            except InputError as error:
                wanted = re.search(r"batch_size of (\S+),", str(error))[1]
                assert f"a batch size of {float(wanted):g}, outside" in answer["refusal"]
                refused += 1
            else:
                for js, field in FIELDS.items():
                    expected = pytest.approx(getattr(moved, field), rel=1e-14)
                    assert answer["recipe"][js] == expected
        assert refused == 1  # a learning rate of 3 would need a batch of 1,920

    def test_half_a_size_goes_to_the_even_one(self):
        recipe = Recipe(learning_rate=0.5, batch_size=2, n_train=100)
        rates = [0.625, 0.875]  # 2.5 and 3.5 examples
        sizes = by_node(
            with_code(
                ["rule"],
                f"""{rates}.map((learningRate) => noisescaleRule.keeping(25,
                {{ learningRate, batchSize: 2, nTrain: 100, momentum: 0 }}, "learningRate"
                ).recipe.batchSize)""",
            )
        )
        assert sizes == [2, 4]
        moved = [recipe.scaled_to(learning_rate=rate, rule="linear") for rate in rates]
        assert sizes == [scaled.batch_size for scaled in moved]

    def test_the_law_predicts_as_the_librarys(self):
        setup = setup_of(playground_page())
        recipes = [
            {"learningRate": e, "batchSize": 1, "momentum": m, "nTrain": n}
            for e in (0.01, 0.2, 2.0)
            for m in (0.0, 0.9)
            for n in (100, 500, 1_000)
        ]
        found = by_node(
            with_code(
                ["rule"],
                f"{json.dumps(recipes)}.map((r) => "
                f"noisescaleRule.bestBatch({json.dumps(setup['law'])}, r, {STEPS}))",
            )
        )
        for recipe, best in zip(recipes, found, strict=True):
            known = PLAYGROUND_LAW.predict(
                learning_rate=recipe["learningRate"],
                momentum=recipe["momentum"],
                n_train=recipe["nTrain"],
                steps=STEPS,
            )
            assert best["value"] == pytest.approx(known.value, rel=1e-12)
            # The library differentiates by steps of 1e-4.
            assert best["low"] == pytest.approx(known.low, rel=1e-3)
            assert best["high"] == pytest.approx(known.high, rel=1e-3)
            assert best["branch"] == known.branch
        assert {best["branch"] for best in found} == {"noise", "epochs"}


def setup_of(page):
    return json.loads(re.search(r'id="playground-setup">(.*?)</script>', page, re.DOTALL)[1])


class TestLaw:
    def test_the_constants_are_what_the_kept_runs_give(self):
        fitted = ns.fit_batch_size_law(calibration(), n_resamples=2)
        for name in ("scale", "power", "epochs"):
            assert getattr(PLAYGROUND_LAW, name).value == pytest.approx(
                getattr(fitted, name).value, rel=5e-3
            )
        assert PLAYGROUND_LAW.n_settings == fitted.n_settings

    def test_the_best_batch_size_is_inside_and_grows_with_the_learning_rate(self):
        runs = calibration().query(
            "momentum == 0.9 and n_train == 1000 and steps == 1000 and learning_rate >= 0.1"
        )
        peaks = [ns.find_peak(part) for _, part in runs.groupby("learning_rate")]
        assert all(peak.undetermined is None for peak in peaks)
        tops = [peak.fitted for peak in peaks]
        assert tops == sorted(tops)


class TestPageItself:
    def test_it_is_one_small_file(self):
        page = playground_page()
        assert len(page) < 1_000_000
        assert re.findall(r"(?:src|href)=", page) == []
        assert "http" not in page.replace("http-equiv", "").replace(
            "http://www.w3.org/2000/svg", ""
        )
        assert setup_of(page)["defaults"] == DEFAULTS

    def test_the_images_are_the_digits(self):
        data, setup = small_digits(), setup_of(playground_page())
        found = by_node(
            with_code(
                ["core"],
                f"""((given) => {{
                const images = noisescale.unpack({BYTES}(given.packed), {BYTES}(given.labels), 196);
                const dense = Array.from({{ length: 20 }}, (_, i) => {{
                  const row = new Array(196).fill(0);
                  for (let k = images.start[i]; k < images.start[i + 1]; k += 1) {{
                    row[images.at[k]] = images.value[k];
                  }}
                  return row;
                }});
                return {{ dense, labels: [...images.label] }};
                }})({json.dumps(setup["test"])})""",
            )
        )
        assert found["labels"] == data.y_test.tolist()
        assert (np.array(found["dense"], np.float32) == data.x_test[:20]).all()
