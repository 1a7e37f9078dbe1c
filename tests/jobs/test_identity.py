"""Two functions that may score differently have different names; the same function has one."""

import functools
import os
import subprocess
import sys
import threading
from dataclasses import dataclass

import jax
import numpy as np
import pytest

import tune_functions as functions
from noisescale.jobs.identity import digest, identity


def named(train):
    return identity(train).name


def scaled(factor, *, seed, settings=None):
    return factor * seed


def test_the_code_counts():
    def one(*, seed):
        return seed

    def two(*, seed):
        return seed + 1

    two.__qualname__ = one.__qualname__
    assert named(one) != named(two)
    assert named(one) == named(one)


def test_a_function_may_name_itself():
    assert named(functions.Counting("x")) == "counting"


def test_two_lambdas_differ():
    assert named(lambda **s: 1.0) != named(lambda **s: 2.0)
    assert digest(lambda **s: 1.0) == digest(lambda **s: 1.0)


def test_two_partials_differ():
    assert named(functools.partial(scaled, 1)) != named(functools.partial(scaled, 2))
    assert named(functools.partial(scaled, 1)) == named(functools.partial(scaled, 1))
    with_keyword = functools.partial(scaled, 1, settings={"a": np.ones(3)})
    assert named(with_keyword) != named(functools.partial(scaled, 1, settings={"a": np.zeros(3)}))


def test_what_is_closed_over_counts():
    def make(x, rate=0.1):
        def train(*, seed, rate=rate):
            return x.sum() + rate + seed

        return train

    ones = np.ones(4)
    assert named(make(ones)) == named(make(np.ones(4)))
    assert named(make(ones)) != named(make(2 * ones))
    assert named(make(ones)) != named(make(ones.astype(np.float32)))
    assert named(make(ones)) != named(make(ones, rate=0.2))
    inner, other = make(ones), make(2 * ones)
    assert digest(make(inner)) != digest(make(other))
    assert digest(jax.jit(make(ones))) != digest(jax.jit(make(2 * ones)))


class Model:
    def __init__(self, width):
        self.width = width

    def __call__(self, *, seed):
        return self.width * self.slope() + seed

    def slope(self):
        return 1


def test_objects_count_by_their_class_and_state():
    assert named(Model(3)) == named(Model(3))
    assert named(Model(3)) != named(Model(4))
    assert named(Model(3).__call__) != named(Model(4).__call__)

    class Steeper(Model):
        def slope(self):
            return 2

    class Steep(Model):
        def slope(self):
            return 3

    Steep.__qualname__ = Steeper.__qualname__
    assert named(Steeper(3)) != named(Steep(3))


@dataclass
class Node:
    value: int
    next: object = None


def test_cycles_and_order_do_no_harm():
    def ring(value):
        first = Node(1)
        first.next = Node(value, first)
        return first

    assert digest(ring(2)) == digest(ring(2)) != digest(ring(3))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    assert digest([1, 2]) != digest([2, 1])
    assert digest(1) != digest(1.0) != digest("1")


def test_what_cannot_be_told_has_a_name_of_its_own():
    lock = threading.Lock()

    def train(*, seed):
        with lock:
            return seed

    first, second = identity(train), identity(train)
    assert first.name != second.name
    assert "_thread:lock" in first.unknown


@pytest.fixture
def project(tmp_path):
    """A package of a user: ``work`` imports a helper, which imports another when it is called."""
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "work.py").write_text(
        "from .helper import score\nLIMITS = {'low', 'high', 'middle'}\n"
        "def train(*, seed):\n    return score(seed) if seed in {1, 2, 3} else len(LIMITS)\n"
    )
    (package / "helper.py").write_text(
        "import numpy\ndef score(seed):\n    from project import deep\n    return deep.value\n"
    )
    (package / "deep.py").write_text("value = 1\n")

    def name(hash_seed="0"):
        code = (
            "from noisescale.jobs.identity import identity\nfrom project.work import train\n"
            "print(identity(train))"
        )
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert "unknown=None" in done.stdout
        return done.stdout

    return package, name


def test_an_edited_helper_makes_another_experiment(project):
    package, name = project
    before = name("0")
    assert name("7") == before  # the same in every process
    (package / "unrelated.py").write_text("value = 3\n")
    with (package / "helper.py").open("a") as file:
        file.write("# a remark\n")
    assert name() == before
    (package / "deep.py").write_text("value = 2\n")
    deeper = name()
    assert deeper != before
    (package / "helper.py").write_text("def score(seed):\n    return 5\n")
    assert len({before, deeper, name()}) == 3


@pytest.mark.parametrize("module", [{"__name__": "__main__"}, {}], ids=["notebook", "text"])
def test_globals_count_by_value(module):
    namespace = {**module, "np": np, "x": np.ones(3)}
    exec("def train(*, seed):\n    return float(np.sum(x)) + seed", namespace)
    before = named(namespace["train"])
    namespace["x"] = np.ones(3)
    assert named(namespace["train"]) == before
    namespace["x"] = np.zeros(3)
    assert named(namespace["train"]) != before
