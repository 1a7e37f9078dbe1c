"""When a run is measured, and what is measured."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from noisescale.checks import check_list, check_whole
from noisescale.errors import InputError
from noisescale.likelihood import Likelihood

ApplyFn = Callable[[Any, jax.Array], jax.Array]

_MOST = 1_000_000  # evaluations of a run
_ROWS = 10_000  # examples scored at once, which bounds the memory of an evaluation


class Evaluation(NamedTuple):
    """Accuracy, and cross-entropy in nats per example, after ``step`` updates.

    Without test data the test values are NaN.
    """

    step: int
    train_accuracy: float
    train_cross_entropy: float
    test_accuracy: float
    test_cross_entropy: float


def evaluation_steps(
    evaluate_at: str | Iterable[int], *, steps: int, n_evaluations: int
) -> list[int]:
    """The steps after which to evaluate, ascending; the last is always ``steps``.

    ``"log"`` gives step 0 and at most ``n_evaluations`` log-spaced steps, ``"final"`` the last
    step alone, and a sequence those steps and the last.
    """
    count = check_whole("n_evaluations", n_evaluations, at_least=1)
    if count > _MOST:
        raise InputError(f"n_evaluations must be at most {_MOST:,}, got {count:,}.")
    if isinstance(evaluate_at, str) and evaluate_at == "final":
        return [steps]
    if isinstance(evaluate_at, str) and evaluate_at == "log":
        # Downwards from the last step, so that even a single evaluation is the final one.
        spaced = np.geomspace(max(1, steps), 1, count).round().astype(int)
        return sorted({0, steps, *spaced[spaced <= steps].tolist()})
    what = "'log', 'final' or a sequence of steps"
    listed = check_list("evaluate_at", evaluate_at, what, at_most=_MOST)
    chosen = {check_whole("a step in evaluate_at", step, at_least=0) for step in listed}
    if wrong := [step for step in sorted(chosen) if not 0 <= step <= steps]:
        raise InputError(f"evaluate_at must lie between 0 and steps = {steps}, got {wrong[0]}.")
    return sorted({*chosen, steps})


@partial(jax.jit, static_argnames=("apply_fn", "likelihood"))
def _totals(
    apply_fn: ApplyFn, likelihood: Likelihood, params: Any, x: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    outputs = apply_fn(params, x)
    assert likelihood.correct is not None  # train() takes likelihoods with classes alone
    return jnp.sum(likelihood.correct(outputs, y)), jnp.sum(likelihood.nll(outputs, y))


def accuracy_and_cross_entropy(
    apply_fn: ApplyFn, likelihood: Likelihood, params: Any, x: jax.Array, y: jax.Array
) -> tuple[float, float]:
    """Share of correct predictions and mean negative log-likelihood over all of (x, y)."""
    correct, nll = 0.0, 0.0
    for start in range(0, len(y), _ROWS):
        rows = slice(start, start + _ROWS)
        part_correct, part_nll = _totals(apply_fn, likelihood, params, x[rows], y[rows])
        correct += float(part_correct)
        nll += float(part_nll)
    return correct / len(y), nll / len(y)
