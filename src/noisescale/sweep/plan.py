"""What to run: a list of configurations, from a grid in Python or a TOML file.

A value may follow from another field by a rule such as ``"10000 / learning_rate"``, because the
paper's experiments keep epsilon times the number of updates fixed.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from noisescale.checks import check_list, check_path, check_whole, shown
from noisescale.errors import InputError
from noisescale.files import read_text
from noisescale.imports import users_code
from noisescale.sweep.config import FIELDS, RunConfig

_MOST_RUNS = 1_000_000
_DERIVED = re.compile(r"\s*([0-9.eE+-]+)\s*([*/])\s*([a-z_]+)\s*")
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
    for name, table in (("run", run), ("grid", grid), ("zipped", zipped)):
        if table is not None and not isinstance(table, Mapping):
            raise InputError(
                f"{name} must be a mapping from fields to values, got {type(table).__name__}."
            )
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
    n_runs = math.prod(map(len, axes.values())) * max(1, len(rows))
    if n_runs > _MOST_RUNS:
        raise InputError(
            f"the plan must have at most {_MOST_RUNS:,} runs, got {n_runs:,}: split its grid."
        )
    plan = {}
    models: dict[str, str] = {}  # what they are is asked once
    for combination in itertools.product(*axes.values()):
        for row in rows or [{}]:
            values = _derive(run | dict(zip(axes, combination, strict=True)) | row)
            model = str(values.get("model"))
            config = RunConfig(**values, model_fingerprint=models.get(model, ""))
            models[model] = config.model_fingerprint
            plan[config.key] = config
    return list(plan.values())


def load_plan(path: Path | str) -> list[RunConfig]:
    """The plan in a TOML file with the tables ``[run]``, ``[grid]`` and ``[zip]``."""
    try:
        content = tomllib.loads(read_text(check_path("plan", path)))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the plan {path} is not TOML: {error}.") from None
    except RecursionError:
        raise InputError(f"the plan {path} is nested too deeply.") from None
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
    listed = plan if isinstance(plan, Iterable) else [plan]
    runs = check_list("the plan", listed, "a plan of runs", at_most=_MOST_RUNS)
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
    known = [name for name in FIELDS if not name.endswith("_fingerprint")]
    for group in groups:
        for name in group:
            if name not in known:
                raise InputError(f"a run has no field {shown(name)}: it has {', '.join(known)}.")
            if name in seen:
                raise InputError(f"the field {name} is given twice: once is enough.")
            seen.add(name)
    for name in ("learning_rate", "batch_size", "steps"):
        if name not in seen:
            raise InputError(f"the plan says nothing of {name}: give it a value.")


def _values(name: str, values: Iterable[Any], what: str) -> list[Any]:
    listed = check_list(f"the {what} of {name}", values, "a list of values", at_most=_MOST_RUNS)
    if not listed:
        raise InputError(f"the {what} of {name} is empty: give it at least one value.")
    return listed


def _derive(values: dict[str, Any]) -> dict[str, Any]:
    """The values with rules and functions replaced by what they give."""
    plain = {n: v for n, v in values.items() if not callable(v) and _rule(n, v) is None}
    made = {}
    for name in values.keys() - plain.keys():
        value = values[name]
        derived = _call(name, value, plain) if callable(value) else _follow(name, value, plain)
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
            f"{name} must be a number or a rule such as '10000 / learning_rate', got "
            f"{shown(value)}."
        )
    number, sign, other = match.groups()
    try:
        return float(number), (float.__mul__ if sign == "*" else float.__truediv__), other
    except ValueError:
        raise InputError(
            f"{name} has the rule {shown(value)}, but {number} is no number."
        ) from None


def _call(name: str, function: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
    with users_code(f"{name} cannot be computed: its function raised"):
        return function(dict(values))


def _follow(name: str, value: Any, values: Mapping[str, Any]) -> float:
    rule = _rule(name, value)
    assert rule is not None
    number, operation, other = rule
    if other not in values or other not in _NUMBERS:
        raise InputError(f"{name} depends on {shown(other)}, which the plan gives no number.")
    try:
        return operation(number, float(values[other]))
    except (TypeError, ValueError, ArithmeticError):
        raise InputError(
            f"{name} cannot be computed from {other} = {shown(values[other])}."
        ) from None
