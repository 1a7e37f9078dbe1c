"""``noisescale tune MODULE:FUNCTION``."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from noisescale.cli.options import Cluster, Debug, Json, Plot, Quiet, Workers, check_path
from noisescale.cli.reports.choose import tuning_beside
from noisescale.cli.user_code import load_function
from noisescale.errors import InputError
from noisescale.jobs.progress import show_progress
from noisescale.text import printable


def tune(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Trains once: (*, batch_size, learning_rate, momentum, steps, seed) -> a "
            "validation score, higher is better; with betas instead of momentum, by Adam.",
        ),
    ],
    epochs: Annotated[float, typer.Option(help="Length of every run.")],
    n_train: Annotated[
        int | None,
        typer.Option(help="Training examples, N. Default: the function's own n_train, if any."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="The loss of score that you accept, shown at 95 %.")
    ] = 0.002,
    no_confirm: Annotated[
        bool, typer.Option("--no-confirm", help="Do not test the result again on fresh seeds.")
    ] = False,
    start: Annotated[
        float | None,
        typer.Option(help="A batch size near the best, predicted or measured: saves updates."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Where stage 1 begins. Default: 0.1; of Adam 0.001.")
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Where stage 1 begins. Default: 0.9.")
    ] = None,
    beta1: Annotated[float | None, typer.Option(help="Of Adam. Default: 0.9.")] = None,
    beta2: Annotated[float | None, typer.Option(help="Of Adam. Default: 0.999.")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="For a function that takes it.")
    ] = None,
    largest_batch: Annotated[
        int | None, typer.Option(help="The limit of your hardware. Default: N.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Of every comparison.")] = 3,
    max_seeds: Annotated[int, typer.Option(help="Of a comparison that is close.")] = 9,
    max_runs: Annotated[int | None, typer.Option(help="Budget in runs.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Budget in gradient updates.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Budget in seconds of training, over all workers.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Give a run up after so many seconds.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            callback=check_path,
            help="Folder of the store; the same command goes on from there.",
        ),
    ] = Path("tune-runs"),
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Use stored runs although the function has changed.")
    ] = False,
    accelerator: Annotated[
        bool,
        typer.Option("--accelerator", help="One run at a time, JAX and PyTorch as you set them."),
    ] = False,
    plot: Plot = None,
    workers: Workers = None,
    cluster: Cluster = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The largest batch that costs no accuracy, with its learning rate and momentum."""
    from noisescale.tune import tune_large_batch

    train = load_function("the training function", function)
    size = getattr(train, "n_train", None) if n_train is None else n_train
    if size is None:
        raise InputError("the training function does not say its n_train: give --n-train.")
    betas = None
    if beta1 is not None or beta2 is not None:
        betas = (0.9 if beta1 is None else beta1, 0.999 if beta2 is None else beta2)
    with show_progress(silent=quiet or json) as progress:
        tuned = tune_large_batch(
            train,
            size,
            epochs=epochs,
            tolerance=tolerance,
            confirm=not no_confirm,
            start=start,
            learning_rate=learning_rate,
            momentum=momentum,
            betas=betas,
            weight_decay=weight_decay,
            largest_batch=largest_batch,
            seeds=seeds,
            max_seeds=max_seeds,
            max_runs=max_runs,
            max_steps=max_steps,
            max_seconds=max_seconds,
            timeout=timeout,
            store=out,
            reuse=reuse,
            accelerator=accelerator,
            executor=cluster,
            workers=workers,
            progress=progress,
        )
    tuned.save(tuning_beside(out))
    if plot is not None:
        tuned.plot(plot)
    print(jsonlib.dumps(tuned.to_dict()) if json else printable(str(tuned)))
