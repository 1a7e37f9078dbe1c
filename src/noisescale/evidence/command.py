"""What ``noisescale evidence MODULE:FUNCTION`` does: a user's model, its evidence, its spectrum."""

from collections.abc import Callable
from typing import Any

import numpy as np

from noisescale.data import import_function
from noisescale.errors import InputError
from noisescale.evidence.curvature.spectrum import Spectrum, spectrum_of
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.laplace import evidence_of
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.preflight import Preflight, preflight
from noisescale.evidence.problem import Problem
from noisescale.evidence.result import Evidence

_BARS = " ▁▂▃▄▅▆▇█"


def load_problem(name: str, likelihood: str) -> Problem:
    """The problem that ``module:function`` gives."""
    function = import_function("the model", name)
    given = function()
    if isinstance(given, tuple) and len(given) == 3:
        apply_fn, params, data = given
        return jax_problem(apply_fn, params, data, likelihood)
    if isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "named_parameters"):
        from noisescale.torch.problem import TorchProblem

        return TorchProblem(*given, likelihood)
    raise InputError(
        f"{name} must return (apply_fn, params, (x, y)) or (torch.nn.Module, dataset), got "
        f"{_describe(given)}."
    )


def explain(problem: Problem, method: str, curvature: str) -> Preflight:
    """What each method would take, without beginning."""
    return preflight(problem.facts(), method, curvature)


def measure(
    problem: Problem,
    *,
    prior_precision: str,
    curvature: str,
    method: str,
    tolerance: float | None,
    progress: Callable[[str], None] | None,
) -> Evidence:
    """The evidence under a prior given as text."""
    prior: Any = prior_precision
    if prior_precision not in ("auto", "per_layer"):
        try:
            prior = float(prior_precision)
        except ValueError:
            raise InputError(
                f"--prior-precision must be a number, auto or per_layer, got {prior_precision!r}."
            ) from None
    return evidence_of(
        problem,
        prior_precision=prior,
        curvature=curvature,
        method=method,
        accuracy=Accuracy(tolerance, progress=progress),
    )


def spectrum(problem: Problem, curvature: str, top_k: int = 10) -> Spectrum:
    """The spectrum of a problem's curvature."""
    return spectrum_of(problem, curvature=curvature, top_k=min(top_k, len(problem.w) - 1))


def picture(found: Spectrum, width: int = 64) -> str:
    """The density as a line of bars, logarithmic in height, with its axis below."""
    values, counts = found.density()
    columns = np.array_split(np.arange(len(values)), width)
    heights = np.array([counts[part].max() for part in columns])
    logs = np.log10(np.maximum(heights, 1e-2)) + 2
    bars = "".join(_BARS[int(np.ceil(h / max(logs.max(), 1e-9) * (len(_BARS) - 1)))] for h in logs)
    zero = int(np.argmin(np.abs([values[part].mean() for part in columns])))
    left, right = f"{values[0]:.2g}", f"{values[-1]:.2g}"
    axis = list(" " * width)
    marks = [(0, left), (width - len(right), right)]
    if values[0] < 0 < values[-1]:
        marks.append((max(zero, len(left) + 1), "0"))
    for at, text in marks:
        axis[at : at + len(text)] = text
    return f"{bars}\n{''.join(axis)[:width]}"


def _describe(given: Any) -> str:
    if isinstance(given, tuple):
        return f"a tuple of {len(given)}"
    return type(given).__name__
