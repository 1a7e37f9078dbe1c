"""What to run: frozen configurations, each with a key that says all it depends on.

A run is a pure function of its configuration. Its key is the sha256 of the configuration as
canonical JSON (sorted keys, floats by ``repr``), with the content of its data in it.
"""

import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from noisescale.checks import check_choice, check_whole
from noisescale.data import Dataset, import_function, load_dataset
from noisescale.errors import InputError
from noisescale.jobs.record import RESULT_FORMAT

# What every run has in common today. In the key, so that another choice makes other runs.
_FIXED = {
    "subset": "random by seed",
    "preprocessing": "none",
    "likelihood": "categorical",
    "dtype": "float32",
    "format": RESULT_FORMAT,
}
_MOST_RUNS = 1_000_000
_DERIVED = re.compile(r"\s*([0-9.eE+-]+)\s*([*/])\s*([a-z_]+)\s*")


class DataFacts(NamedTuple):
    """What a configuration must know of its data."""

    fingerprint: str
    n_train: int
    n_test: int
    n_features: int
    n_classes: int


@lru_cache(maxsize=1)
def load_data(name: str) -> Dataset:
    """The data set ``name``, kept for the next run, which is likely to use it too."""
    return load_dataset(name)


# What the name "mnist" stands for: the loader verifies every file, so it is this or nothing.
MNIST_FACTS = DataFacts(
    "56d04129dc4ace6b6f495359fcee017d74b56af8f1b1a852c8d5c26c73be778a", 60_000, 10_000, 784, 10
)
_assumed: dict[str, DataFacts] = {}


@contextmanager
def without_images(facts: Mapping[str, DataFacts]) -> Iterator[None]:
    """In here, runs on these data sets can be named although the data need not be there."""
    _assumed.update(facts)
    try:
        yield
    finally:
        _assumed.clear()


def data_facts(name: str) -> DataFacts:
    """Fingerprint and sizes of the data set ``name``."""
    return _assumed[name] if name in _assumed else _loaded_facts(name)


@cache
def _loaded_facts(name: str) -> DataFacts:
    data = load_data(name)
    return DataFacts(
        data.fingerprint,
        len(data.y_train),
        len(data.y_test),
        data.x_train.shape[1],
        data.n_classes,
    )


@cache
def model_maker(name: str) -> Callable[[int, int], Any]:
    """The function ``module:function`` that makes a model."""
    if ":" not in name:
        raise InputError(f"model must be 'dense' or module:function, got {name!r}.")
    return import_function("model", name)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run.

    Attributes:
        learning_rate, batch_size, steps, momentum, prior_precision, cost_convention, sampler:
            as in :func:`noisescale.train`.
        seed: draws the training subset, the initialisation and the batches.
        data: ``"mnist"``, ``"mnist-embedded"``, ``"fashion-mnist"``, ``"digits"``, or
            ``"module:function"`` returning four arrays.
        n_train, n_test: examples to draw from it; None for all.
        model: ``"dense"``, or ``"module:function"`` called with the numbers of features and
            classes, returning a model (``model.init(seed, initialisation)``, ``model(params, x)``).
        hidden_widths: of a dense network; ``()`` is softmax regression.
        initialisation: the scheme by name.
        evaluate_at, n_evaluations: as in :func:`noisescale.train`.
        data_fingerprint: filled in; a worker whose data differ refuses to run.
    """

    learning_rate: float
    batch_size: int
    steps: int
    momentum: float = 0.0
    prior_precision: float = 0.0
    seed: int = 0
    data: str = "mnist"
    n_train: int | None = None
    n_test: int | None = None
    model: str = "dense"
    hidden_widths: tuple[int, ...] = (800,)
    initialisation: str = "glorot_uniform"
    cost_convention: str = "per_example"
    sampler: str = "without_replacement"
    evaluate_at: str | tuple[int, ...] = "log"
    n_evaluations: int = 30
    data_fingerprint: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        # Imported late: reading a store must not wait for JAX.
        from noisescale.training import INITIALISATIONS, Settings
        from noisescale.training.evaluation import evaluation_steps

        for name in ("data", "model", "initialisation"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"{name} must be a name, got {getattr(self, name)!r}.")
        facts = data_facts(self.data)
        checked: dict[str, Any] = {
            name: self._size(name, limit)
            for name, limit in (("n_train", facts.n_train), ("n_test", facts.n_test))
        }
        settings = Settings(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            momentum=self.momentum,
            n_train=checked["n_train"],
            steps=self.steps,
            prior_precision=self.prior_precision,
            likelihood=_FIXED["likelihood"],  # type: ignore[arg-type]
            cost_convention=self.cost_convention,
            sampler=self.sampler,
            seed=self.seed,
        )
        checked |= {k: v for k, v in settings.to_dict().items() if k in _FIELDS}
        check_choice("initialisation", self.initialisation, INITIALISATIONS)
        widths: Any = self.hidden_widths
        if isinstance(widths, str) or not isinstance(widths, Iterable):
            raise InputError(f"hidden_widths must be a list of widths, got {widths!r}.")
        checked["hidden_widths"] = tuple(
            check_whole("a width in hidden_widths", width, at_least=1) for width in widths
        )
        if self.model != "dense":
            model_maker(self.model)
        checked["n_evaluations"] = check_whole("n_evaluations", self.n_evaluations, at_least=1)
        at = evaluation_steps(
            self.evaluate_at, steps=settings.steps, n_evaluations=self.n_evaluations
        )
        if not isinstance(self.evaluate_at, str):
            checked["evaluate_at"] = tuple(at)
        # Given by whoever planned the run; a worker compares it with the data it has.
        checked["data_fingerprint"] = self.data_fingerprint or facts.fingerprint
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _size(self, name: str, limit: int) -> int:
        value = getattr(self, name)
        size = limit if value is None else check_whole(name, value, at_least=1)
        if size > limit:
            raise InputError(f"{name} must be at most {limit}, all of {self.data}, got {size}.")
        return size

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as JSON has them."""
        values = ((name, getattr(self, name)) for name in _FIELDS)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values}

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON that the key is the hash of."""
        return json.dumps(
            self.to_dict() | _FIXED, sort_keys=True, separators=(",", ":"), allow_nan=False
        )

    @cached_property
    def key(self) -> str:
        """The run's name in a store: sha256 of its canonical JSON."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def shape(self) -> tuple[object, ...]:
        """What runs must share to share a compiled program."""
        return self.data, self.n_train, self.n_test, self.model, self.hidden_widths, self.batch_size

    @property
    def cost(self) -> float:
        """The run's work in multiply-adds, roughly: to order runs and to tell the time left."""
        from noisescale.training.evaluation import evaluation_steps

        facts = data_facts(self.data)
        widths = (facts.n_features, *self.hidden_widths, facts.n_classes)
        n_params = sum(a * b for a, b in itertools.pairwise(widths))
        n_evaluations = len(
            evaluation_steps(self.evaluate_at, steps=self.steps, n_evaluations=self.n_evaluations)
        )
        assert self.n_train is not None
        assert self.n_test is not None
        # A step goes over a layer twice, and reads and writes every parameter, which takes as long
        # as seven examples; an evaluation's products are less efficient. However small the model,
        # a step takes some ten microseconds and a run some twenty milliseconds.
        products = 2.0 * (self.batch_size + 7) * self.steps
        products += 1.5 * n_evaluations * (self.n_train + self.n_test)
        return n_params * products + 4e5 * self.steps + 1e9


_FIELDS = tuple(f.name for f in fields(RunConfig))
_Value = Any  # a field's value, a "number / field" rule, or a function of the other fields


def make_plan(
    run: Mapping[str, _Value] | None = None,
    *,
    grid: Mapping[str, Iterable[Any]] | None = None,
    zipped: Mapping[str, Iterable[Any]] | None = None,
    seeds: int | Iterable[int] | None = None,
) -> list[RunConfig]:
    """A plan: what all runs share, with every combination of ``grid`` and every row of ``zipped``.

    A value may also be a rule, ``"10000 / learning_rate"`` or ``"30 * learning_rate"``, or a
    function of a mapping with the other fields' values. ``seeds`` is a number of seeds (from 0) or
    the seeds themselves.

    >>> plan = make_plan({"steps": "10000 / learning_rate"},
    ...           grid={"learning_rate": [0.1, 1.0], "batch_size": [10, 30]}, seeds=3)
    """
    run, grid, zipped = dict(run or {}), dict(grid or {}), dict(zipped or {})
    if seeds is not None:
        if "seed" in grid:
            raise InputError("the field seed is given twice, in the grid and by seeds.")
        if isinstance(seeds, int):
            if check_whole("seeds", seeds, at_least=1) > _MOST_RUNS:
                raise InputError(f"seeds must be at most {_MOST_RUNS}, got {seeds}.")
            seeds = range(seeds)
        grid["seed"] = seeds
    _check_names(run, grid, zipped)
    axes = {name: _values(name, values, "grid") for name, values in grid.items()}
    columns = {name: _values(name, values, "zip") for name, values in zipped.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"the fields of a zip must have as many values each: {told}.")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    plan = {}
    for combination in itertools.product(*axes.values()):
        for row in rows or [{}]:
            values = run | dict(zip(axes, combination, strict=True)) | row
            config = RunConfig(**_derive(values))
            plan[config.key] = config
    return list(plan.values())


def load_plan(path: Path | str) -> list[RunConfig]:
    """The plan in a TOML file with the tables ``[run]``, ``[grid]`` and ``[zip]``."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the plan {path} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the plan {path} is not TOML: {error}.") from None
    if unknown := set(content) - {"run", "grid", "zip", "seeds"}:
        raise InputError(
            f"the plan {path} has an entry {min(unknown)!r}: use seeds, [run], [grid] and [zip]."
        )
    for name in ("run", "grid", "zip"):
        if not isinstance(content.get(name, {}), dict):
            raise InputError(f"the plan {path} must have {name} as a table, [{name}].")
    return make_plan(
        content.get("run"),
        grid=content.get("grid"),
        zipped=content.get("zip"),
        seeds=content.get("seeds"),
    )


def check_plan(plan: Iterable[RunConfig]) -> dict[str, RunConfig]:
    """The plan's runs by key, each once."""
    runs = list(plan) if isinstance(plan, Iterable) else [plan]
    for run in runs:
        if not isinstance(run, RunConfig):
            raise InputError(
                f"a plan must be a list of RunConfig, as make_plan gives, got {type(run).__name__}."
            )
    if not runs:
        raise InputError("the plan holds no runs.")
    return {run.key: run for run in runs}


def _check_names(*groups: Mapping[str, Any]) -> None:
    seen: set[str] = set()
    known = [name for name in _FIELDS if name != "data_fingerprint"]
    for group in groups:
        for name in group:
            if name not in known:
                raise InputError(f"a run has no field {name!r}: it has {', '.join(known)}.")
            if name in seen:
                raise InputError(f"the field {name} is given twice: once is enough.")
            seen.add(name)
    for name in ("learning_rate", "batch_size", "steps"):
        if name not in seen:
            raise InputError(f"the plan says nothing of {name}: give it a value.")


def _values(name: str, values: Iterable[Any], what: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"the {what} of {name} must be a list of values, got {values!r}.")
    if not (listed := list(values)):
        raise InputError(f"the {what} of {name} is empty: give it at least one value.")
    return listed


def _derive(values: dict[str, Any]) -> dict[str, Any]:
    """The values with rules and functions replaced by what they give."""
    plain = {n: v for n, v in values.items() if not callable(v) and _rule(n, v) is None}
    made = {}
    for name in values.keys() - plain.keys():
        value = values[name]
        derived = value(dict(plain)) if callable(value) else _apply(name, _rule(name, value), plain)
        if name in _WHOLE and isinstance(derived, float):
            if not math.isfinite(derived):
                raise InputError(f"{name} comes out as {derived}: give it a finite rule.")
            derived = round(derived)
        made[name] = derived
    return plain | made


_WHOLE = {"batch_size", "steps", "n_train", "n_test", "seed", "n_evaluations"}
_NUMBERS = _WHOLE | {"learning_rate", "momentum", "prior_precision"}
_Rule = tuple[float, Callable[[float, float], float], str]


def _rule(name: str, value: Any) -> _Rule | None:
    if name not in _NUMBERS or not isinstance(value, str):
        return None
    match = _DERIVED.fullmatch(value)
    if match is None:
        raise InputError(
            f"{name} must be a number or a rule such as '10000 / learning_rate', got {value!r}."
        )
    number, sign, other = match.groups()
    try:
        return float(number), (float.__mul__ if sign == "*" else float.__truediv__), other
    except ValueError:
        raise InputError(f"{name} has the rule {value!r}, but {number} is no number.") from None


def _apply(name: str, rule: _Rule | None, values: Mapping[str, Any]) -> float:
    assert rule is not None
    number, operation, other = rule
    if other not in values or other not in _NUMBERS:
        raise InputError(f"{name} depends on {other!r}, which the plan gives no number.")
    try:
        return operation(number, float(values[other]))
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f"{name} cannot be computed from {other} = {values[other]!r}.") from None
