"""Parts of a measurement go through workers, are kept one by one, and fail by themselves."""

import math
from dataclasses import replace
from functools import partial
from types import FunctionType

import pytest

from noisescale.data import load_digits
from noisescale.jobs.engines import LazyEngine
from noisescale.jobs.progress import Progress
from noisescale.paper.section import Context, Workplace
from oracles.here import Here


def mean_of_images(context: Workplace, seed: int) -> list[float]:
    if seed == 13:
        raise ArithmeticError("thirteen")
    return [float(context.data.x_train[seed].mean()), math.nan]


def no_engine():
    raise AssertionError("nothing was to be measured")


class Order(Progress):
    """Remembers what came to its end."""

    def __init__(self):
        self.seeds = []

    def finished(self, run, record):
        self.seeds.append(run.arguments["seed"])


def context_in(folder, engine, progress=None):
    return Context(load_digits(), "smoke", 1, None, engine, progress or Progress(), folder=folder)


def calls(*seeds):
    """The later the longer."""
    return {partial(mean_of_images, seed=seed): float(seed) for seed in seeds}


def test_what_is_made_ahead_is_kept(tmp_path):
    engine, told = Here(), Order()
    context = context_in(tmp_path, engine, told)
    context.make_ahead(calls(1, 2) | calls(2))  # the same part asked for twice
    assert engine.calls == 2
    assert told.seeds == [2, 1]  # the longest first
    context.make_ahead(calls(1, 2, 3))  # one more
    assert engine.calls == 3
    again = context_in(tmp_path, LazyEngine(no_engine))
    again.make_ahead(calls(1, 2, 3))
    for seed in (1, 2, 3):
        mean, nan = again.kept(mean_of_images, seed=seed)
        assert mean == float(load_digits().x_train[seed].mean())
        assert math.isnan(nan)


def test_a_part_that_fails_takes_none_with_it(tmp_path):
    engine = Here()
    with pytest.raises(RuntimeError, match="1 of 3 parts failed, the first: Arithm.*: thirteen"):
        context_in(tmp_path, engine).make_ahead(calls(1, 13, 2))
    assert engine.calls == 4  # it was tried twice
    context_in(tmp_path, LazyEngine(no_engine)).make_ahead(calls(1, 2))


def test_without_a_folder_nothing_is_made_ahead():
    context = context_in(None, LazyEngine(no_engine))
    context.make_ahead(calls(1))
    assert context.kept(mean_of_images, seed=1)[0] == load_digits().x_train[1].mean()


def test_what_sections_share_is_of_one_function_and_its_circumstances(tmp_path):
    calls = []

    def measure(context):
        calls.append(context.seeds)
        return len(calls)

    context = context_in(tmp_path, Here())
    assert [context.once(measure), context.once(measure), calls] == [1, 1, [1]]
    assert replace(context, seeds=5).once(measure) == 2
    assert replace(context, scale="full").once(measure) == 3
    of_the_same_name = FunctionType((lambda context: "other").__code__, {}, measure.__name__)
    assert context.once(of_the_same_name) == "other"
    assert context.once(measure) == 1


def test_data_of_another_content_are_refused(tmp_path):
    context = context_in(tmp_path, Here())
    part = context._part(mean_of_images, {"seed": 1})
    (record,) = (
        Here()
        .submit(
            "noisescale.paper.part_work:measure_parts", [part.to_dict() | {"fingerprint": "other"}]
        )
        .result()
    )
    assert record["status"] == "failed"
    assert "digits has other content here" in record["error"]
