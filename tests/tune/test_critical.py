"""The critical batch size by branches: recovered where it is known, honest where it is not."""

import hashlib
import itertools
import json
import math
import os
from functools import partial

import numpy as np
import pytest

import noisescale as ns
from noisescale.errors import InputError
from noisescale.tune.branches import as_curve, content_digest
from noisescale.tune.critical import analyse
from noisescale.uncertainty import Estimate
from oracles.here import Here

SIZES = [8, 32, 128, 512]
RATES = [0.1] * 4


def power_law(e, batch_size, critical, least=1_000.0):
    """A loss after e examples, of a law in which e counts 1/(1 + B/b)."""
    return 2.0 / (1 + e / (least * (1 + batch_size / critical)))


def train_from(
    checkpoint, *, batch_size, learning_rate, n_examples, seed, critical=100.0, spread=0
):
    """Small batches and large ones; a seed is slower or faster than another as a whole."""
    slow = 1 + spread * np.random.default_rng([seed, batch_size]).normal()
    grid = np.linspace(0, n_examples, 2_001)
    return [(e, checkpoint / 2 * power_law(e / slow, batch_size, critical)) for e in grid]


def measured(spread, critical=100.0, seeds=6, target=None):
    curves = [
        [
            np.array(
                train_from(
                    2.0,
                    batch_size=size,
                    learning_rate=0.1,
                    n_examples=20_000,
                    seed=seed,
                    critical=critical,
                    spread=spread,
                )
            )
            for seed in range(seeds)
        ]
        for size in SIZES
    ]
    notes = []
    return (*analyse(SIZES, RATES, curves, target, notes), notes)


def test_a_known_critical_batch_size_is_recovered():
    """The grid of 2,000 points leaves an error of interpolation of about 1e-6."""
    outcomes, critical, target, notes = measured(spread=0)
    assert critical.value == pytest.approx(100.0, rel=1e-4)
    at = [o.examples.value for o in outcomes]
    assert at[:3] == pytest.approx([5_000 * (1 + B / 100) / 1.08 for B in SIZES[:3]], rel=1e-4)
    assert math.isnan(at[3])  # it would take 28,000
    assert [o.finding for o in outcomes] == ["same", "worse", "worse", "worse"]
    assert target == pytest.approx(power_law(5_000, 8, 100.0))
    assert len(notes) == 1
    assert "batch size 512 is left out" in notes[0]


@pytest.mark.parametrize("critical", [30.0, 100.0, 1_000.0])
def test_with_noise_the_interval_holds_it(critical):
    """Within four standard errors, each from ten seeds."""
    _, found, _, _ = measured(spread=0.03, critical=critical, seeds=10)
    assert abs(math.log(found.value / critical)) < 4 * found.std / found.value
    assert found.low < found.value < found.high


def test_batches_that_cost_nothing_leave_a_lower_bound():
    outcomes, found, _, _ = measured(spread=0.03, critical=1e9, seeds=10)
    assert math.isnan(found.value) or found.low > 512
    assert found.low > 100
    assert "worse" not in [o.finding for o in outcomes]


def test_branches_that_diverge_or_stop_short_are_left_out():
    curves = [
        [np.array([(0.0, 2.0), (100.0, 1.0), (200.0, 0.5)])] * 3,
        [np.array([(0.0, 2.0), (100.0, 1.2), (200.0, 0.7)])] * 3,
        [np.array([(0.0, 2.0), (100.0, 1.9), (200.0, 1.8)])] * 3,
        [None, *[np.array([(0.0, 2.0), (100.0, 1.5)])] * 2],
    ]
    notes = []
    (
        outcomes,
        found,
        target,
    ) = analyse(SIZES, RATES, curves, 1.0, notes)
    assert len(notes) == 2  # nothing about the law: two points are on a line
    assert "batch size 128 is left out" in notes[0]
    assert "diverged" in notes[1]
    assert outcomes[3].finding == "worse"
    # 100 examples, and 100 + 100 (0.2/0.5) = 140: a line through two points.
    assert [o.examples.value for o in outcomes[:2]] == pytest.approx([100.0, 140.0])
    assert found.value == pytest.approx((100 - 8 * 40 / 24) / (40 / 24))
    assert target == 1.0
    with pytest.raises(InputError, match="diverged at the smallest batch size"):
        analyse(SIZES, RATES, [[None] * 3] * 4, None, [])


def test_examples_that_are_off_the_law_are_told():
    """A sharp end, as of a learning rate beyond what is stable."""
    curves = [[np.array([(0.0, 2.0), (e, 0.0)])] * 3 for e in (100.0, 100.0, 100.0, 400.0)]
    notes = []
    analyse(SIZES, RATES, curves, None, notes)
    assert "off the law's line" in notes[0]


@pytest.fixture(scope="module")
def result(tmp_path_factory, workers):
    store = tmp_path_factory.mktemp("critical") / "runs.sqlite"
    return store, branched(store, executor=workers)


def branched(store, checkpoint=2.0, **others):
    arguments = {"batch_sizes": [512, 8, 128], "learning_rate": 0.1, "n_examples": 20_000}
    return ns.measure_critical_batch(
        partial(train_from, spread=0.01),
        checkpoint,
        **(arguments | {"seeds": 3, "executor": Here(), "store": store} | others),
    )


def test_through_workers_and_a_store(result):
    store, found = result
    assert found.critical_batch_size.value == pytest.approx(100, rel=0.1)  # spread 1 %, 9 branches
    assert [o.batch_size for o in found.outcomes] == [8, 128, 512]
    assert [o.learning_rate for o in found.outcomes] == pytest.approx([0.1, 1.6, 6.4])
    assert (found.same_up_to, found.worse_from) == (8, 128)
    with ns.RunStore(store) as kept:
        assert len(kept.frame()) == 9
    # Again: answered by the store, whose seconds are those of then.
    again = branched(store)
    assert again.to_dict() == found.to_dict()
    branched(store, checkpoint=1.9)  # another checkpoint is another experiment
    with ns.RunStore(store) as kept:
        assert len(kept.frame()) == 18


def test_it_prints_and_is_drawn(result, tmp_path):
    _, found = result
    text = repr(found)
    assert f"Critical batch size {found.critical_batch_size}, from examples" in text
    assert "worse from 128" in text
    json.dumps(found.to_dict(), allow_nan=False)
    axes = found.plot(tmp_path / "critical.png", proxy=Estimate(80.0, low=60, high=99))
    assert (tmp_path / "critical.png").stat().st_size > 1_000
    b = found.critical_batch_size.value
    direct = axes.lines[0]
    np.testing.assert_allclose(direct.get_ydata(), 1 + direct.get_xdata() / b)
    assert "proxy" in axes.get_legend().texts[1].get_text()


def train_from_file(path, *, batch_size, learning_rate, n_examples, seed):
    file = path if path.is_file() else next(p for p in sorted(path.rglob("*")) if p.is_file())
    scale = float(file.read_text())
    return train_from(
        scale, batch_size=batch_size, learning_rate=1, n_examples=n_examples, seed=seed
    )


@pytest.mark.parametrize("checkpoint", ["file", "folder", "deep/folder"])
def test_other_content_is_another_checkpoint(tmp_path, checkpoint):
    file = tmp_path / checkpoint / ("" if checkpoint == "file" else "weights")
    file.parent.mkdir(parents=True, exist_ok=True)
    targets = []
    for content in ("2.0", "4.0"):
        file.write_text(content)
        found = ns.measure_critical_batch(
            train_from_file,
            tmp_path / checkpoint.partition("/")[0],
            batch_sizes=[8, 128],
            learning_rate=1.0,
            n_examples=10_000,
            seeds=2,
            executor=Here(),
            store=tmp_path / "runs",
        )
        targets.append(found.target_loss)
    assert targets[1] == pytest.approx(2 * targets[0])


def test_a_folder_is_its_files_by_name(tmp_path):
    def folder(name, files):
        for path, content in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(content)
        return content_digest(str(tmp_path / name))

    plain = {"config.json": "{}", "a/weights": "1", "b/weights": "2"}
    here = folder("here", plain)
    assert here == folder("there", dict(reversed(plain.items())))
    others = [
        {"config.json": "{}", "a/weights": "2", "b/weights": "1"},
        {"config.json": "{}", "a/weights": "1"},
        {"config.json": "{ }", "a/weights": "1", "b/weights": "2"},
        plain | {"c": ""},
    ]
    assert len({here, *(folder(f"other-{k}", o) for k, o in enumerate(others))}) == 5
    # As Hugging Face's cache has them: links, and here one that leads back.
    (tmp_path / "links").mkdir()
    for name in ("config.json", "a", "b"):
        (tmp_path / "links" / name).symlink_to(tmp_path / "here" / name)
    assert content_digest(tmp_path / "links") == here
    (tmp_path / "links" / "circle").symlink_to(tmp_path / "links")
    (tmp_path / "links" / "nowhere").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "links" / "pipe")
    assert content_digest(tmp_path / "links") == here
    for unnamed in ("gpt2", "x" * 10_000, "\0", 2.0, None, tmp_path / "absent"):
        assert content_digest(unnamed) == ""


def test_the_digest_of_a_single_file_is_what_stores_have(tmp_path):
    (tmp_path / "weights").write_text("2.0")
    expected = hashlib.sha256(b"2.0").hexdigest()
    assert content_digest(tmp_path / "weights") == expected


@pytest.mark.parametrize(
    ("rule", "up_to", "rates"),
    [
        ("linear", None, [0.1, 0.4, 1.6]),
        ("linear", 32, [0.1, 0.4, 0.4]),
        ("sqrt", None, [0.1, 0.2, 0.4]),
        ("constant", None, [0.1] * 3),
        (lambda B: B / 100, None, [0.08, 0.32, 1.28]),
    ],
)
def test_learning_rates_follow_the_rule(rule, up_to, rates):
    from noisescale.tune.critical import _rates

    assert _rates([8, 32, 128], 0.1, rule, up_to) == pytest.approx(rates)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch_sizes": [8]}, "two or more"),
        ({"batch_sizes": itertools.count(1)}, "batch_sizes must have at most 1,000 values"),
        ({"batch_sizes": [8, 30_000]}, "at most n_examples"),
        ({"rule": "cubic"}, "rule must be one of"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"seeds": 1}, "seeds must be at least 2"),
    ],
)
def test_bad_input_gets_a_sentence(changed, words):
    with pytest.raises(InputError, match=words):
        branched(None, **changed)


def test_functions_that_return_something_else_are_told():
    with pytest.raises(InputError, match=r"failed: TypeError: train_from must return two or more"):
        ns.measure_critical_batch(
            lambda checkpoint, **settings: 0.5,
            None,
            batch_sizes=[8, 16],
            learning_rate=0.1,
            n_examples=100,
            seeds=2,
            executor=Here(),
        )
    with pytest.raises(TypeError, match="growing"):
        as_curve([(10, 1.0), (5, 0.5)])
