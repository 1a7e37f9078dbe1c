"""The outer loop of a run: on to the next evaluation, evaluate, tell, notice divergence.

SGD itself and its stochastic differential equation are set up alike and differ in how they advance.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisescale.arrays import check_data, check_params, count_examples
from noisescale.checks import check_callable
from noisescale.likelihood import LIKELIHOODS, Likelihood
from noisescale.training.evaluation import (
    ApplyFn,
    Evaluation,
    accuracy_and_cross_entropy,
    evaluation_steps,
)
from noisescale.training.result import Status, TrainResult, Waypoint
from noisescale.training.settings import Rates, Settings

# What is measured after a step; None if anything is not finite.
Evaluate = Callable[[int, Any], Evaluation | None]


class Setup(NamedTuple):
    """A run before its first step: what was given, checked and in the types that it computes in."""

    settings: Settings
    schedule: list[int]
    likelihood: Likelihood
    params: Any  # a copy in float32, which a compiled loop may overwrite
    x: NDArray[Any]
    y: NDArray[Any]
    rates: Rates
    evaluate: Evaluate


def set_up(
    apply_fn: ApplyFn,
    params: Any,
    train_data: tuple[ArrayLike, ArrayLike],
    test_data: tuple[ArrayLike, ArrayLike] | None,
    *,
    evaluate_at: str | Iterable[int],
    n_evaluations: int,
    **hyperparameters: Any,
) -> Setup:
    """Check everything that a run is given; ``hyperparameters`` are those of :class:`Settings`."""
    n_train = count_examples(train_data, "train_data")
    settings = Settings(n_train=n_train, **hyperparameters)
    schedule = evaluation_steps(evaluate_at, steps=settings.steps, n_evaluations=n_evaluations)
    likelihood = LIKELIHOODS[settings.likelihood]
    copied = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), check_params(params))
    x, y, n_classes = check_data(apply_fn, copied, train_data, likelihood, "train_data")
    evaluate = evaluator(apply_fn, likelihood, copied, (x, y), test_data)
    rates = settings.rates(n_classes)
    return Setup(settings, schedule, likelihood, copied, x, y, rates, evaluate)


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
    setup: Setup,
    callback: Callable[[Waypoint], None] | None,
) -> TrainResult:
    """Walk through the schedule of evaluations, or until something is not finite."""
    if callback is not None:
        check_callable("callback", callback)
    settings = setup.settings
    history: list[Evaluation] = []
    done = 0

    def result(diverged_at: int | None) -> TrainResult:
        status: Status = "done" if diverged_at is None else "diverged"
        return TrainResult(walk.params(done), tuple(history), status, done, diverged_at, settings)

    for target in setup.schedule:
        while done < target:
            made, finite = walk.advance(target - done)
            done += made
            if not finite:
                return result(diverged_at=done)
            if callback is not None and done < target:
                callback(Waypoint(done, settings.steps, history[-1] if history else None))
        latest = setup.evaluate(target, walk.params(target))
        if latest is None:
            return result(diverged_at=target)
        history.append(latest)
        if callback is not None:
            callback(Waypoint(done, settings.steps, latest))
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
