"""The critical batch size measured directly: branches from a checkpoint at several batch sizes.

To the same loss, a batch size B takes e(B) = e_0 (1 + B/b) examples (McCandlish et al. 2018), if
its learning rate suits it: b is the critical batch size, e_0 what the smallest batches take. Every
branch sees the same number of examples and says its loss on the way. For each seed, e(B) is where
its curve crosses the target loss, and a line through e(B) over B gives e_0 and e_0/b; over seeds
their means, whose ratio b has Fieller's interval (:mod:`noisescale.noise.watch.ratio`).

Beside the line, without any law: the loss after all examples against that of the smallest batch,
paired by seed, by the tuner's statistics. Up to where is it the same?
"""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import (
    check_callable,
    check_choice,
    check_learning_rate,
    check_list,
    check_number,
    check_whole,
)
from noisescale.errors import InputError
from noisescale.jobs.execution import complete
from noisescale.jobs.identity import identity
from noisescale.jobs.packing import pack
from noisescale.jobs.progress import Progress
from noisescale.jobs.record import last_line
from noisescale.jobs.store import RunStore, opened
from noisescale.noise.watch.ratio import RunningRatio
from noisescale.tune.branches import WORK, Branch, TrainFrom, content_digest
from noisescale.tune.comparison import compare, usual_spread
from noisescale.tune.critical_result import BatchOutcome, CriticalBatch, Meaning
from noisescale.uncertainty import Estimate, mean_of

Array = NDArray[np.float64]
_MOST_SIZES = 1_000
_MISFIT = 0.25  # a line so far off describes something else
_MEANING: dict[str, Meaning] = {
    "fell": "worse",
    "rose": "better",
    "held": "same",
    "unclear": "unclear",
}
RULES = {"linear": 1.0, "sqrt": 0.5, "constant": 0.0}


def measure_critical_batch(
    train_from: TrainFrom,
    checkpoint: Any,
    *,
    batch_sizes: Iterable[int],
    learning_rate: float,
    n_examples: int,
    rule: str | Callable[[int], float] = "linear",
    up_to: float | None = None,
    target_loss: float | None = None,
    seeds: int = 5,
    first_seed: int = 0,
    store: Path | str | RunStore | None = None,
    executor: Any = None,
    workers: int | None = None,
    progress: bool | Progress = False,
) -> CriticalBatch:
    """Measure the critical batch size by training on from a checkpoint at several batch sizes.

    Args:
        train_from: your function, ``train_from(checkpoint, *, batch_size, learning_rate,
            n_examples, seed)``: it trains on for ``n_examples`` examples and returns pairs
            (examples seen since the checkpoint, loss), best from 0 on; the loss is one that batch
            sizes share, as on held-out data.
        checkpoint: its first argument, whatever that is; of large ones the path of a file or
            folder, which a store knows by its content.
        batch_sizes: two or more; the smallest is the reference.
        learning_rate: at the smallest batch size.
        n_examples: that every branch sees.
        rule: how the learning rate grows with the batch: ``"linear"`` (SGD), ``"sqrt"`` (Adam),
            ``"constant"``, or a function from the batch size to the learning rate.
        up_to: the batch size from which on it grows no more, such as the critical one that a
            watched run says.
        target_loss: to which examples are counted; what the smallest batch size reaches with a
            quarter of its examples if None, so that batches up to three times the critical one get
            there.
        seeds, first_seed: of every batch size; the same ones, so that differences are paired.
        store: a folder or file that keeps every branch, as in :func:`noisescale.tune_large_batch`.
        executor, workers, progress: as in :func:`noisescale.run_sweep`.

    >>> import noisescale as ns
    >>> def train_from(checkpoint, *, batch_size, learning_rate, n_examples, seed):
    ...     slow = (1 + batch_size / 100) * (1 + 0.01 * seed)  # examples wasted by large batches
    ...     return [(e, checkpoint / (1 + e / (500 * slow))) for e in range(0, n_examples + 1, 250)]
    >>> found = ns.measure_critical_batch(train_from, 2.0, batch_sizes=[10, 50, 200],
    ...     learning_rate=0.1, n_examples=4_000, seeds=3, workers=1)
    >>> round(found.critical_batch_size.value)
    100
    """
    what = "a list such as [16, 64, 256]"
    listed = check_list("batch_sizes", batch_sizes, what, at_most=_MOST_SIZES)
    sizes = sorted({check_whole("a batch size", size, at_least=1) for size in listed})
    if len(sizes) < 2:
        raise InputError(f"batch_sizes must be two or more, got {sizes}.")
    n_examples = check_whole("n_examples", n_examples, at_least=1)
    if sizes[-1] > n_examples:
        raise InputError(
            f"a batch size must be at most n_examples, {n_examples}, got {sizes[-1]}: let branches "
            "see more examples."
        )
    if target_loss is not None:
        target_loss = check_number("target_loss", target_loss, "", lambda v: True)
    rates = _rates(sizes, check_learning_rate(learning_rate), rule, up_to)
    n_seeds = check_whole("seeds", seeds, at_least=2)
    first = check_whole("first_seed", first_seed, at_least=0)
    check_callable("train_from", train_from)
    bound = functools.partial(train_from, checkpoint)
    named, notes = identity(bound), []
    if named.unknown is not None and store is not None:
        notes.append(
            f"stored branches are not used, and these will not be: whether {named.unknown} is the "
            "same as before cannot be told"
        )
    name = named.name + content_digest(checkpoint)
    branches = [
        [
            Branch(
                function=name,
                batch_size=size,
                learning_rate=rate,
                n_examples=n_examples,
                seed=first + k,
            )
            for k in range(n_seeds)
        ]
        for size, rate in zip(sizes, rates, strict=True)
    ]
    curves, seconds = _made(branches, pack(bound, "train_from"), store, executor, workers, progress)
    outcomes, critical, target = analyse(sizes, rates, curves, target_loss, notes)
    return CriticalBatch(
        critical_batch_size=critical,
        target_loss=target,
        outcomes=outcomes,
        n_examples=n_examples,
        n_seeds=n_seeds,
        seconds=seconds,
        notes=tuple(notes),
    )


def _rates(
    sizes: list[int],
    learning_rate: float,
    rule: str | Callable[[int], float],
    up_to: float | None,
) -> list[float]:
    if callable(rule):
        return [check_learning_rate(rule(size)) for size in sizes]
    power = RULES[check_choice("rule", rule, RULES)]
    most = sizes[-1] if up_to is None else check_number("up_to", up_to, "above 0", lambda v: v > 0)
    grown = [max(min(size, most), sizes[0]) / sizes[0] for size in sizes]
    return [learning_rate * factor**power for factor in grown]


def _made(
    branches: list[list[Branch]],
    packed: bytes,
    store: Path | str | RunStore | None,
    executor: Any,
    workers: int | None,
    progress: bool | Progress,
) -> tuple[list[list[Array | None]], float]:
    """The curve of every branch, (points, 2), None if it diverged; and the seconds they took."""
    runs = {branch.key: branch for row in branches for branch in row}
    with opened(store) as runs_store:
        frame = complete(
            runs,
            runs_store,
            (WORK, packed),
            executor,
            workers=workers,
            retries=0,
            retry_failed=True,
            progress=progress,
        ).set_index("key")
        for key, row in frame[frame["status"] == "failed"].iterrows():
            branch = runs[str(key)]
            raise InputError(
                f"train_from(batch_size={branch.batch_size}, learning_rate="
                f"{branch.learning_rate:g}, seed={branch.seed}) failed: "
                f"{last_line(row['error'])}."
            )
        points = {
            key: part[["step", "loss"]].to_numpy(float)
            for key, part in runs_store.curves(runs).groupby("key")
        }
        good = frame["status"] == "done"
        curves = [[points[b.key] if good[b.key] else None for b in row] for row in branches]
        return curves, float(frame["duration"].sum())


def analyse(
    sizes: list[int],
    rates: list[float],
    curves: list[list[Array | None]],
    target_loss: float | None,
    notes: list[str],
) -> tuple[tuple[BatchOutcome, ...], Estimate, float]:
    """What every batch size came to, the critical one, and the target loss.

    Args:
        sizes, rates: batch sizes in order, and their learning rates.
        curves: by batch size and seed, (points, 2) of examples and loss; None if diverged.
        target_loss: given, or None for what the smallest batch size has after a quarter.
        notes: what there is to say is added here.
    """
    losses = np.array([[np.nan if c is None else c[-1, 1] for c in row] for row in curves])
    whole = ~np.isnan(losses).any(axis=1)
    if not whole[0]:
        raise InputError(
            f"training diverged at the smallest batch size, {sizes[0]}: give a lower learning_rate."
        )
    target = target_loss
    if target is None:
        reference = [c for c in curves[0] if c is not None]
        target = float(np.mean([np.interp(c[-1, 0] / 4, c[:, 0], c[:, 1]) for c in reference]))
    crossed = np.array([[_crossing(c, target) for c in row] for row in curves])
    usable = ~np.isnan(crossed).any(axis=1)
    for size, was_whole, is_usable in zip(sizes, whole, usable, strict=True):
        if not is_usable:
            why = (
                f"did not reach a loss of {target:.4g}, or began below" if was_whole else "diverged"
            )
            notes.append(f"batch size {size} is left out of the law: a branch {why}")
    usual = usual_spread(-losses)
    outcomes = tuple(
        BatchOutcome(
            batch_size=size,
            learning_rate=rate,
            loss=mean_of(row),
            difference=Estimate(0.0 - d.mean, d.std, n=d.n_seeds),
            finding=_MEANING[d.finding],
            examples=mean_of(e).interval(),
        )
        for size, rate, row, e in zip(sizes, rates, losses, crossed, strict=True)
        for d in [compare(-row, -losses[0], None, usual=usual)]
    )
    critical, misfit = _line(np.array(sizes, float)[usable], crossed[usable])
    if misfit > _MISFIT:
        notes.append(
            f"examples are up to {misfit:.0%} off the law's line: rely on where the loss stops "
            "being the same, rather than on the law's critical batch size"
        )
    return outcomes, critical, target


def _line(sizes: Array, crossed: Array) -> tuple[Estimate, float]:
    """b of e(B) = e_0 (1 + B/b), and the largest relative distance of mean examples from it.

    From examples (sizes, seeds), a line for each seed. Errors are about in proportion to e, so
    residuals are divided by its mean.
    """
    ratio, misfit = RunningRatio(decay=0.0), 0.0
    if len(sizes) >= 2:
        weight = 1 / crossed.mean(axis=1)
        design = np.stack([np.ones_like(sizes), sizes], axis=1) * weight[:, None]
        starts, slopes = np.linalg.lstsq(design, crossed * weight[:, None], rcond=None)[0]
        for start, slope in zip(starts, slopes, strict=True):
            ratio.take(float(slope), float(start))
        line = starts.mean() + slopes.mean() * sizes
        misfit = float(np.abs(crossed.mean(axis=1) / line - 1).max())
    return ratio.interval(), misfit


def _crossing(curve: Array | None, target: float) -> float:
    """Examples until the loss first reaches the target, a line between points; NaN if never."""
    if curve is None:
        return np.nan
    below = np.flatnonzero(curve[:, 1] <= target)
    if not len(below) or below[0] == 0:
        return np.nan
    (e0, l0), (e1, l1) = curve[below[0] - 1 : below[0] + 1]
    return float(e0 + (e1 - e0) * (l0 - target) / (l0 - l1))
