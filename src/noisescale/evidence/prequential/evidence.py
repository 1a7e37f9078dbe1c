"""The public face of the prequential evidence: what users may ask for, checked."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from noisescale.checks import check_flag, check_list, check_number, check_whole
from noisescale.errors import InputError
from noisescale.evidence.prequential.blocks import block_ends, order_of
from noisescale.evidence.prequential.fits import EstimatorFit, as_fit
from noisescale.evidence.prequential.mixture import TEMPERATURES, Array
from noisescale.evidence.prequential.result import PrequentialEvidence
from noisescale.evidence.prequential.targets import make_targets
from noisescale.evidence.prequential.work import WORK, Procedure, Stage
from noisescale.jobs.execution import complete
from noisescale.jobs.identity import identity, identity_of
from noisescale.jobs.packing import pack
from noisescale.jobs.progress import Progress, chosen_progress
from noisescale.jobs.record import last_line
from noisescale.jobs.store import RunStore, opened


def prequential_evidence(
    fit: Any,
    data: tuple[Any, ArrayLike],
    *,
    blocks: Iterable[int] | None = None,
    orders: int = 4,
    ensemble: int = 1,
    null: Any = "uniform",
    temperatures: Sequence[float] = TEMPERATURES,
    null_expert: bool = True,
    floor: float = 1e-3,
    n_classes: int | None = None,
    seed: int = 0,
    store: Path | str | RunStore | None = None,
    executor: Any = None,
    workers: int | None = None,
    progress: bool | Progress = False,
) -> PrequentialEvidence:
    """The evidence of a training procedure: train on the past, pay the log loss of the next block.

    Args:
        fit: a scikit-learn classifier, or a regressor with ``predict(x, return_std=True)``; a
            ready fit, :func:`noisescale.fit_function` for JAX or
            :func:`noisescale.torch.fit_function`; or a function ``fit(x, y, *, seed)`` that trains
            from scratch and returns ``predict_proba``, which gives an array (n, K), or a pair
            (mean, sd) for real targets.
        data: ``(x, y)``: whole numbers and text are classes, floating-point numbers are targets of
            a regression.
        blocks: the sizes of the blocks, which add up to N; by default each is as large as all
            before it. The first is paid by the null model.
        orders: how many random orders of the examples to bet on.
        ensemble: trainings for each block, whose predictions are averaged.
        null: ``"uniform"``, or ``"frequencies"`` for class base rates that are learnt on the way;
            for a regressor it is ``"gaussian"`` (unknown mean and variance; the constant of its
            improper prior cancels from E), or a distribution of ``scipy.stats`` that was chosen
            without looking at y.
        temperatures: the grid that predictions are tempered with; a Bayesian mixture finds out
            which to believe. For a regressor they multiply the standard deviation.
        null_expert: whether the null model takes part in that mixture.
        floor: the share of the uniform distribution in every predicted probability.
        n_classes: K, if y may lack some of the classes 0..K-1.
        seed: decides orders and the trainings' seeds. Evidences of one seed are paired by order.
        store: a folder (made if it is not there) or a file such as ``runs.sqlite`` that keeps every
            stage: the same call goes on from there.
        executor, workers: as in :func:`noisescale.run_sweep`. Without ``store``, ``executor`` and
            ``workers`` all trainings are made in this process, one after another.
        progress: as in :func:`noisescale.run_sweep`.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> evidence = prequential_evidence(GaussianNB(), load_iris(return_X_y=True), orders=8)
    >>> evidence.E < -100
    True
    """
    x, y = _check_data(data)
    function, real = as_fit(fit)
    targets = make_targets(y, real=real, n_classes=n_classes, null=null)
    N = len(targets.given)
    procedure = Procedure(
        function,
        x,
        targets,
        temperatures=_check_temperatures(temperatures),
        floor=check_number("floor", floor, "in [0, 1)", lambda v: 0 <= v < 1),
    )
    ends = block_ends(blocks, N, smallest=max(4, 2 * (targets.n_classes or 0)))
    n_orders = check_whole("orders", orders, at_least=1)
    check_flag("null_expert", null_expert)
    seed = check_whole("seed", seed, at_least=0)
    members = check_whole("ensemble", ensemble, at_least=1)
    null_losses = np.array([_null_losses(procedure, seed, k, ends) for k in range(n_orders)])
    name, unknown = "", None
    if store is not None:
        named = identity(fit) if not isinstance(function, EstimatorFit) else None
        parts = (function if named is None else named.name, x, targets.given, targets.classes)
        whole = identity_of("prequential", *parts, procedure.temperatures, procedure.floor)
        name, unknown = whole.name, whole.unknown or (named.unknown if named else None)
    stages = [
        Stage(procedure=name, seed=seed, order=k, start=start, stop=stop, ensemble=members)
        for k in range(n_orders)
        for start, stop in pairwise(ends)
    ]
    with chosen_progress(progress) as shown:
        if unknown is not None:
            shown.decided(f"stored stages are not used: whether {unknown} is the same is not known")
        if store is None and executor is None and workers is None:
            paid = _pay_here(procedure, stages, shown)
        else:
            paid = _pay_elsewhere(procedure, stages, store, executor, workers, shown)
    losses = np.array([losses for losses, _ in paid]).reshape(n_orders, len(ends) - 1, -1)
    if null_expert:
        losses = np.concatenate([losses, null_losses[:, 1:, None]], axis=2)
    return PrequentialEvidence(
        log_null=targets.log_null(targets.paid),
        ends=ends,
        losses=losses,
        null_losses=null_losses,
        scores=np.array([score for _, score in paid]).reshape(n_orders, -1),
        temperatures=procedure.temperatures,
        null_expert=null_expert,
        null=targets.null,
        ensemble=members,
        seed=seed,
        n_train=N,
        n_classes=targets.n_classes,
        null_note=targets.null_note,
    )


def _check_data(data: Any) -> tuple[Any, Any]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InputError(f"data must be a pair (x, y), got {type(data).__name__}.")
    x, y = data
    if hasattr(x, "tocsr"):
        x = x.tocsr()
    elif not hasattr(x, "iloc"):
        x = np.asarray(x)
    n_inputs, n_targets = x.shape[0] if np.ndim(x) or hasattr(x, "tocsr") else 0, len(np.ravel(y))
    if n_inputs != n_targets:
        raise InputError(f"data has {n_inputs} examples in x but {n_targets} targets in y.")
    if n_targets < 2:
        raise InputError(
            f"data must hold two examples or more, one to learn from and one to predict, got "
            f"{n_targets}."
        )
    return x, y


def _check_temperatures(given: Any) -> tuple[float, ...]:
    listed = check_list("temperatures", given, "numbers such as (0.5, 1, 2)")
    if not listed:
        raise InputError(
            "temperatures must be one or more, got none: without any there is no bet on the "
            "procedure, and (1,) takes its predictions as they are."
        )
    checked = (check_number("a temperature", T, "above 0", lambda v: v > 0) for T in listed)
    return tuple(sorted(checked))


def _null_losses(procedure: Procedure, seed: int, order: int, ends: tuple[int, ...]) -> Array:
    """What the null model pays for each block."""
    targets = procedure.targets
    y = targets.paid[order_of(seed, order, len(targets.paid))]
    return -np.diff([targets.log_null(y[:end]) if end else 0.0 for end in (0, *ends)])


def _pay_here(
    procedure: Procedure, stages: list[Stage], progress: Progress
) -> list[tuple[list[float], float]]:
    """What was paid at each stage, one after another in this process."""
    paid: list[tuple[list[float], float]] = []
    with progress.sweep(stages, n_stored=0):
        for stage in stages:
            progress.line(f"order {stage.order}: {stage.start} examples seen")
            try:
                paid.append(procedure.pay(stage))
            except Exception as error:
                kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
                reason = (str(error).strip().splitlines() or [""])[-1].rstrip(".")
                raise InputError(
                    f"{_stage_in_words(stage)} failed: {kind}{reason}. Mend it; with store= what "
                    "has finished is kept."
                ) from error
            progress.finished(stage, {"status": "done"})
    return paid


def _pay_elsewhere(
    procedure: Procedure,
    stages: list[Stage],
    store: Path | str | RunStore | None,
    executor: Any,
    workers: int | None,
    progress: Progress,
) -> list[tuple[list[float], float]]:
    """The same by workers, through a store."""
    with opened(store) as kept:
        frame = complete(
            {stage.key: stage for stage in stages},
            kept,
            (WORK, pack(procedure, "fit")),
            executor,
            workers=workers,
            retries=0,
            retry_failed=True,
            progress=progress,
        ).set_index("key")
        failed = [stage for stage in stages if frame.loc[stage.key, "status"] == "failed"]
        if failed:
            error = last_line(frame.loc[failed[0].key, "error"])
            error = error.rpartition("InputError: ")[2]  # a sentence of ours speaks for itself
            where = f"in {kept.path}" if store is not None else "nowhere: give store= to keep them"
            raise InputError(
                f"{_stage_in_words(failed[0])} failed: {error.rstrip('.')}. Mend it and call "
                f"again: {len(stages) - len(failed)} of {len(stages)} stages have finished and are "
                f"kept {where}."
            )
        curves = kept.curves(frame.index)
    scores: pd.Series[Any] = frame["score"]
    losses = {
        key: part["loss"].astype(float).fillna(np.inf).tolist()
        for key, part in curves.groupby("key")
    }
    return [(losses.get(stage.key, []), float(scores[stage.key])) for stage in stages]


def _stage_in_words(stage: Stage) -> str:
    return f"fit on the first {stage.start} examples of order {stage.order}"
