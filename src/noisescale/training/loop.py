"""The outer loop of a run: on to the next evaluation, evaluate, tell, notice divergence."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisescale.arrays import check_data
from noisescale.likelihood import Likelihood
from noisescale.training.evaluation import ApplyFn, Evaluation, accuracy_and_cross_entropy
from noisescale.training.result import Progress, Status, TrainResult
from noisescale.training.settings import Settings

# What is measured after a step; None if anything is not finite.
Evaluate = Callable[[int, Any], Evaluation | None]


class Walk(NamedTuple):
    """A run in progress.

    Attributes:
        advance: ``at_most -> (made, finite)``, some updates and whether all stayed finite.
        params: ``step -> params``, where the run is, that step having been reached.
    """

    advance: Callable[[int], tuple[int, bool]]
    params: Callable[[int], Any]


def follow(
    walk: Walk,
    schedule: Iterable[int],
    settings: Settings,
    evaluate: Evaluate,
    progress: Callable[[Progress], None] | None,
) -> TrainResult:
    """Walk through the ``schedule`` of evaluations, or until something is not finite."""
    history: list[Evaluation] = []
    done = 0

    def result(diverged_at: int | None) -> TrainResult:
        status: Status = "done" if diverged_at is None else "diverged"
        return TrainResult(walk.params(done), tuple(history), status, done, diverged_at, settings)

    for target in schedule:
        while done < target:
            made, finite = walk.advance(target - done)
            done += made
            if not finite:
                return result(diverged_at=done)
            if progress is not None and done < target:
                progress(Progress(done, settings.steps, history[-1] if history else None))
        latest = evaluate(target, walk.params(target))
        if latest is None:
            return result(diverged_at=target)
        history.append(latest)
        if progress is not None:
            progress(Progress(done, settings.steps, latest))
    return result(diverged_at=None)


def evaluator(
    apply_fn: ApplyFn,
    likelihood: Likelihood,
    params: Any,
    train_data: tuple[NDArray[Any], NDArray[Any]],
    test_data: tuple[ArrayLike, ArrayLike] | None,
) -> Evaluate:
    """The function that measures params on both sets; None if anything is not finite."""
    sets = [tuple(map(jnp.asarray, train_data))]
    if test_data is not None:
        x, y, _ = check_data(apply_fn, params, test_data, likelihood, "test_data")
        sets.append((jnp.asarray(x), jnp.asarray(y)))

    def evaluate(step: int, params: Any) -> Evaluation | None:
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params)):
            return None
        scores = [accuracy_and_cross_entropy(apply_fn, likelihood, params, x, y) for x, y in sets]
        values = [number for pair in scores for number in pair]
        if not np.isfinite(values).all():
            return None
        return Evaluation(step, *values, *[float("nan")] * (4 - len(values)))

    return evaluate
