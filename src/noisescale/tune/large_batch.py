"""The public face of the tuner: what users may ask for, checked."""

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from noisescale.checks import check_list, check_number, check_whole
from noisescale.errors import InputError
from noisescale.jobs.engines import Engine, engine_for
from noisescale.jobs.identity import identity
from noisescale.jobs.packing import pack
from noisescale.jobs.progress import Progress, chosen_progress
from noisescale.jobs.store import RunStore, opened
from noisescale.tune.function import TrainFunction, check_function, interface_of
from noisescale.tune.margin import Tuner
from noisescale.tune.procedure import Plan, TuneWarning
from noisescale.tune.result import TuneResult
from noisescale.tune.scores import Budget, Trials
from noisescale.tune.starting import around, first_recipe, notes_of
from noisescale.tune.stored import stored_name

_FIRST = (8, 32, 128, 512)  # batch sizes of stage 1


def tune_large_batch(
    train: TrainFunction,
    n_train: int,
    *,
    epochs: float,
    tolerance: float = 0.002,
    confirm: bool = True,
    start: Any = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    betas: tuple[float, float] | None = None,
    weight_decay: float | None = None,
    batch_sizes: Iterable[int] | None = None,
    largest_batch: int | None = None,
    seeds: int = 3,
    max_seeds: int = 9,
    first_seed: int = 0,
    max_runs: int | None = None,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    timeout: float | None = None,
    store: Path | str | RunStore | None = None,
    reuse: bool = False,
    accelerator: bool = False,
    executor: Any = None,
    workers: int | None = None,
    progress: bool | Progress = False,
) -> TuneResult:
    """Tune batch size, learning rate and momentum for the largest batch without loss of accuracy.

    Args:
        train: your function, ``train(*, batch_size, learning_rate, momentum, steps, seed)``,
            returning a validation score, higher is better, NaN if training diverged. One that takes
            ``betas`` instead of ``momentum`` trains by Adam; ``weight_decay`` is given if taken.
        n_train: the number of training examples, N.
        epochs: the length of every run; ``steps`` is ``epochs * n_train / batch_size``.
        tolerance: the loss of score that you accept. A larger batch is taken when it is shown, at
            95 %, to lose no more.
        confirm: compare what was taken once more with the best recipe of stage 1, by ``max_seeds``
            seeds that nothing has seen: a batch about half way to the largest, then the largest.
            What is not shown to lose no more is not recommended, so that 95 % holds for the whole
            call, not for each comparison alone. The budget keeps what this takes.
        start: a :class:`noisescale.Recipe` or ``AdamRecipe``, a batch size such as the prediction
            of a :class:`noisescale.BatchSizeLaw` or a measured critical batch size: stage 1 then
            begins with half of it, itself and twice it.
        learning_rate, momentum: where stage 1 begins; 0.1 and 0.9 unless given.
        betas, weight_decay: the same for Adam, whose learning rate is then 0.001 unless given.
        batch_sizes: that stage 1 tries first, instead of 8, 32, 128 and 512.
        largest_batch: the limit of your hardware; N unless given.
        seeds, max_seeds: of every comparison, and of one that is close.
        first_seed: the seeds count from here.
        max_runs, max_steps, max_seconds: the budget; the best recipe so far is returned when it is
            spent. Seconds are of training, summed over workers.
        timeout: seconds after which a run is given up.
        store: a folder (made if it is not there) or a file such as ``runs.sqlite``, which keeps
            every run: the same call goes on from there. Runs are those of ``train`` as it is now:
            its code, what it closes over, and the modules of yours that it imports. A change is
            told, and starts anew.
        reuse: take stored runs of ``train`` for its own although it has changed since.
        accelerator: run one at a time, in a process whose JAX and PyTorch are as you set them.
        executor, workers: as in :func:`noisescale.run_sweep`.
        progress: True to say which stage it is, what was decided and why; or a
            :class:`noisescale.Progress` of your own.

    Runs execute in worker processes with one thread each (but see ``accelerator``), so ``train``
    must be picklable in the way of cloudpickle: functions in notebooks and lambdas are.
    """
    interface = interface_of(train)
    notes = check_function(train, interface)
    for note in notes:
        warnings.warn(note, TuneWarning, stacklevel=2)
    n_train = check_whole("n_train", n_train, at_least=2)
    limit = (
        n_train
        if largest_batch is None
        else check_whole("largest_batch", largest_batch, at_least=2)
    )
    if limit > n_train:
        raise InputError(f"largest_batch must be at most n_train, {n_train}, got {limit}.")
    n_seeds = check_whole("seeds", seeds, at_least=2)
    epochs = check_number("epochs", epochs, "above 0", lambda v: v > 0)
    if epochs > (most := 2**62 / n_train):
        raise InputError(f"epochs must be at most {most:.3g}, 2**62 updates, got {epochs:g}.")
    tolerance = check_number("tolerance", tolerance, "at least 0", lambda v: v >= 0)
    given = {
        "learning_rate": learning_rate,
        "momentum": momentum,
        "betas": betas,
        "weight_decay": weight_decay,
    }
    first, near = first_recipe(start, given, interface, n_train=n_train, epochs=epochs)
    notes += notes_of(start)
    if near is not None and batch_sizes is not None:
        raise InputError("start and batch_sizes both say where stage 1 begins: give one of them.")
    plan = Plan(
        first=first,
        n_train=n_train,
        epochs=epochs,
        sizes=_first_sizes(batch_sizes if near is None else around(near, limit), limit),
        limit=limit,
        tolerance=tolerance,
        confirm=confirm,
        spacing=4 if near is None else 2,
        seeds=n_seeds,
        max_seeds=max(check_whole("max_seeds", max_seeds, at_least=2), n_seeds),
    )
    budget = _check_budget(plan, max_runs, max_steps, max_seconds)
    if timeout is not None:
        timeout = check_number("timeout", timeout, "above 0", lambda v: v > 0)
    with ExitStack() as closing:
        shown = closing.enter_context(chosen_progress(progress))
        keeps = store is not None
        own = not isinstance(store, RunStore)  # one that others share has others' runs
        store = closing.enter_context(opened(store))
        named = identity(train)
        function, told = named.name, list[str]()
        if keeps and (own or reuse or named.unknown is not None):
            function, told = stored_name(named, store, reuse=reuse)
        notes += told
        for note in told:
            shown.decided(note)
        trials = Trials(
            function=function,
            packed=pack(train, "train"),
            timeout=timeout,
            n_train=n_train,
            epochs=plan.epochs,
            first_seed=check_whole("first_seed", first_seed, at_least=0),
            store=store,
            engine=closing.enter_context(_engine(executor, workers, accelerator)),
            budget=budget,
            progress=shown,
            interface=interface,
        )
        return Tuner(plan, trials, shown, notes).run()


def _engine(
    executor: Any, workers: int | None, accelerator: bool
) -> AbstractContextManager[Engine]:
    if not accelerator:
        return engine_for(executor, workers=workers)
    if executor is not None or workers not in (None, 1):
        raise InputError(
            "accelerator=True runs one at a time in a process of its own: leave executor and "
            "workers out."
        )
    return engine_for(None, workers=1, one_thread=False)


def _first_sizes(given: Iterable[int] | None, limit: int) -> tuple[int, ...]:
    if given is None:
        # Where the usual ones leave too little room, half and a quarter of what is allowed.
        small = {limit, limit // 2, max(1, limit // 4)}
        sizes = small if limit < _FIRST[1] else {min(size, limit) for size in _FIRST}
    else:
        listed = check_list("batch_sizes", given, "a list such as [16, 32]")
        sizes = {check_whole("a batch size", size, at_least=1) for size in listed}
        if sizes and max(sizes) > limit:
            raise InputError(f"a batch size must be at most {limit}, got {max(sizes)}.")
    if len(sizes) < 2:
        raise InputError(f"stage 1 needs two batch sizes or more, got {sorted(sizes)}.")
    return tuple(sorted(sizes))


def _check_budget(
    plan: Plan, max_runs: int | None, max_steps: int | None, max_seconds: float | None
) -> Budget:
    """Refuse what does not even pay for stage 1's first comparison."""
    sizes = f"{len(plan.sizes)} batch sizes and {plan.seeds} seeds"
    if max_runs is not None:
        need = len(plan.sizes) * plan.seeds
        if check_whole("max_runs", max_runs, at_least=1) < need:
            raise InputError(
                f"a budget of {max_runs} runs is too small to decide anything: the first "
                f"comparison, {sizes}, takes {need}."
            )
    if max_steps is not None:
        per_seed = sum(max(1, round(plan.epochs * plan.n_train / size)) for size in plan.sizes)
        need = per_seed * plan.seeds
        if check_whole("max_steps", max_steps, at_least=1) < need:
            raise InputError(
                f"a budget of {max_steps:,} updates is too small to decide anything: the first "
                f"comparison, {sizes}, takes {need:,}."
            )
    if max_seconds is not None:
        max_seconds = check_number("max_seconds", max_seconds, "above 0", lambda v: v > 0)
    return Budget(max_runs, max_steps, max_seconds)
