"""``noisescale evidence MODULE:FUNCTION``: a user's model, its evidence and its spectrum."""

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisescale.checks import check_number
from noisescale.cli.options import Debug, Json, Plot, Quiet
from noisescale.cli.user_code import call, calls_back, load_function
from noisescale.errors import InputError
from noisescale.jobs.progress import show_progress

if TYPE_CHECKING:
    from noisescale.evidence import Spectrum
    from noisescale.evidence.problem import Problem

_BARS = " ▁▂▃▄▅▆▇█"


def evidence(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Returns (apply_fn, params, (x, y)) or (torch.nn.Module, dataset).",
        ),
    ],
    prior_precision: Annotated[
        str, typer.Option(metavar="NUMBER|auto|per_layer", help="The prior's precision.")
    ] = "auto",
    likelihood: Annotated[
        str, typer.Option(help="categorical, bernoulli or gaussian.")
    ] = "categorical",
    curvature: Annotated[str, typer.Option(help="ggn or hessian.")] = "ggn",
    method: Annotated[
        str, typer.Option(help="auto, dense, dual, lanczos, kfac or diagonal.")
    ] = "auto",
    at: Annotated[
        str,
        typer.Option(help="check (withholds E away from minima), map (descends first), or point."),
    ] = "check",
    null: Annotated[
        str, typer.Option(help="What to compare with: uniform, or frequencies of the classes.")
    ] = "uniform",
    tolerance: Annotated[
        float | None,
        typer.Option(help="The standard error that lanczos is to reach, in nats."),
    ] = None,
    plot: Plot = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what each method would take, and stop.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Should I believe this minimum? The evidence and the spectrum of your model."""
    prior = _read_prior(prior_precision)
    from noisescale.evidence.curvature.spectrum import spectrum_of
    from noisescale.evidence.laplace import evidence_of
    from noisescale.evidence.occam.term import Accuracy
    from noisescale.evidence.preflight import preflight

    function = load_function("the model", model)
    with calls_back(model, function):
        problem = _problem(model, call(model, function), likelihood)
        if explain:
            plan = preflight(problem.facts(), method, curvature)
            print(jsonlib.dumps(asdict(plan)) if json else str(plan).replace("; ", "\n  "))
            return
        with show_progress(silent=quiet or json) as progress:
            result = evidence_of(
                problem,
                prior_precision=prior,
                curvature=curvature,
                method=method,
                at=at,
                null=null,
                accuracy=Accuracy(tolerance, progress=progress.line),
            )
        if not json:  # before the spectrum, which cannot always be found
            print(result, flush=True)
        try:
            spectrum = spectrum_of(problem, curvature=curvature)
        except InputError as error:
            shown = {"evidence": result.to_dict(), "spectrum": None, "no_spectrum": str(error)}
            print(jsonlib.dumps(shown) if json else f"\nThere is no spectrum: {error}")
            return
    if plot is not None:
        spectrum.plot(plot)
    if json:
        print(jsonlib.dumps({"evidence": result.to_dict(), "spectrum": spectrum.to_dict()}))
        return
    print(f"\n{spectrum}\n{_bars(spectrum)}")


def _read_prior(text: str) -> float | str:
    if text in ("auto", "per_layer"):
        return text
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"--prior-precision must be a number, auto or per_layer, got {text!r}."
        ) from None
    # Curvatures are divided by it: far from 1 that overflows, and no weights are so large or small.
    return check_number(
        "--prior-precision", value, "above 0 (from 1e-100 to 1e100)", lambda v: 1e-100 <= v <= 1e100
    )


def _problem(name: str, given: Any, likelihood: str) -> "Problem":
    """The problem that the user's function returned."""
    if isinstance(given, tuple) and len(given) == 3:
        from noisescale.evidence.jax_problem import jax_problem

        apply_fn, params, pair = given
        return jax_problem(apply_fn, params, pair, likelihood)
    if isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "named_parameters"):
        from noisescale.torch.problem import TorchProblem

        return TorchProblem(*given, likelihood)
    kind = f"a tuple of {len(given)}" if isinstance(given, tuple) else type(given).__name__
    raise InputError(
        f"{name} must return (apply_fn, params, (x, y)) or (torch.nn.Module, dataset), got {kind}."
    )


def _bars(spectrum: "Spectrum", width: int = 64) -> str:
    """The density as a line of bars, logarithmic in height, with its axis below."""
    import numpy as np

    values, counts = spectrum.density()
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
