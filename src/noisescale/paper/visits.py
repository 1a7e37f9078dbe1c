"""Appendix A: does Langevin dynamics visit a minimum in proportion to its evidence?"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.noise.langevin import Dynamics, State, corrected_sgld, overdamped, run_chains
from noisescale.paper import location
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.location import NAMES, Landscape, Minimum, basin_of, gradient
from noisescale.paper.runs import Array, short
from noisescale.paper.section import Context, Measurement, Picture
from noisescale.paper.style import plain_log
from noisescale.uncertainty import Estimate, mean_of

_STEP = 1e-3  # of Langevin; a tenth of one over the largest curvature
_TEMPERATURES = (0.8, 1.0, 1.5, 2.0, 3.0)
_LEARNING_RATES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12)  # of SGD with one reading a batch
_TIME = {"smoke": 2, "quick": 30, "full": 60}  # several times what the minima take to exchange
_SGD_TIME = {"smoke": 2, "quick": 30, "full": 100}
_CHAINS = {"smoke": 30, "quick": 150, "full": 1_500}
_DRAWS = 20
_GRID = {"smoke": 101, "quick": 301, "full": 601}  # points a side, for quadrature


_PRECISE = 0.02  # standard error of a share of the time that can tell it from another
_SHOWN_TEMPERATURES = np.geomspace(0.4, 4, 60)
_SHOWN_SAMPLES = 1_500
_SHOWN_GRID = 121  # points a side, of the basins as drawn


@dataclass(frozen=True)
class Visits:
    """Shares of the time in each minimum, and what they should be by the evidence."""

    minima: tuple[Minimum, ...]
    basins: NDArray[np.int64]  # on a grid, for the picture
    expected: Array  # (minima,): the share of the evidence in each basin, by quadrature
    expected_at: Array  # (temperatures, minima): the same at _SHOWN_TEMPERATURES
    equal_temperature: float  # at which the sharp and the broad minimum share alike
    at_one: list[Estimate]  # T = 1, by minimum
    moved: Array  # by how much halving the step moved them
    by_temperature: dict[float, list[Estimate]]
    left: dict[float, Estimate]  # noise scale g: share of SGD runs that left the sharp minimum
    positions: Array  # some draws at T = 1


def measure_visits(context: Context) -> Visits:
    """Sample at T = 1 with two steps, at other temperatures, and by SGD."""
    landscape = location.survey(_GRID[context.scale])
    n, time = _CHAINS[context.scale], _TIME[context.scale]
    pair = _run(_halved(_STEP), _starts(landscape, n), time / _STEP, seed=0)
    fine, coarse = (_shares(landscape, pair[name]) for name in ("fine", "coarse"))
    by_temperature = {}
    every = 10 if context.scale == "smoke" else 1
    for k, T in enumerate(_TEMPERATURES[::every]):
        kernel = overdamped(gradient, step_size=_STEP, temperature=T)
        draws = _run(kernel, _starts(landscape, n // 3)["fine"], time / _STEP, seed=1 + k)
        by_temperature[T] = [mean_of(share) for share in _shares(landscape, draws).T]
    positions = pair["fine"].reshape(-1, 2)
    thin = max(1, (len(landscape.axis) - 1) // (_SHOWN_GRID - 1))
    return Visits(
        minima=landscape.minima,
        basins=landscape.basins[::thin, ::thin],
        expected=landscape.probabilities(),
        expected_at=np.array([landscape.probabilities(T) for T in _SHOWN_TEMPERATURES]),
        equal_temperature=scipy.optimize.brentq(lambda T: _preference(landscape, T), 0.3, 1.5),
        at_one=[mean_of(share) for share in fine.T],
        moved=np.abs(fine.mean(axis=0) - coarse.mean(axis=0)),
        by_temperature=by_temperature,
        left={
            _noise_scale(rate): _leave(context, landscape, rate)
            for rate in _LEARNING_RATES[::every]
        },
        positions=positions[:: max(1, len(positions) // _SHOWN_SAMPLES)].round(3),
    )


def judge_visits(visits: Visits) -> Judgement:
    """C30: frequencies within 3 SE of the evidences, the step small enough."""
    stds = np.array([seen.std for seen in visits.at_one])
    off = np.abs([seen.value for seen in visits.at_one] - visits.expected) / stds
    small = visits.moved < stds
    return conclude(
        "C30",
        # A step that is too large says nothing of the claim, so it cannot refute it.
        [bool((off < 3).all()), True if small.all() else None],
        decidable=bool(stds.max() <= _PRECISE),
        measured={
            f"share of the {name} minimum": short(seen.value)
            for name, seen in zip(NAMES, visits.at_one, strict=True)
        },
        uncertainty={
            "standard errors": [short(std) for std in stds],
            "deviation from the evidence in standard errors": [short(value) for value in off],
            "moved by halving the step, in standard errors": [
                short(value) for value in visits.moved / stds
            ],
        },
    )


def describe_visits(visits: Visits) -> tuple[Measurement, ...]:
    """The numbers for the report."""
    rows = [
        Measurement(
            f"time in the {name} minimum at T = 1",
            f"{seen}, evidence says {share:.4f}",
            f"cost {m.cost:.2f}, ln evidence {m.log_evidence:.2f} by quadrature over the basin, "
            f"{m.laplace:.2f} by Laplace",
        )
        for name, seen, share, m in zip(
            NAMES, visits.at_one, visits.expected, visits.minima, strict=True
        )
    ]
    return (
        *rows,
        Measurement(
            "temperature above which the broad minimum is preferred",
            f"{visits.equal_temperature:.3f}",
            "isotropic noise, quadrature; the sharp minimum is the deeper one",
        ),
        Measurement(
            "noise scale g at which SGD leaves the sharp minimum",
            _half(visits.left),
            f"half of the runs have left in the end, B = 1 of N = {location.N_READINGS}",
        ),
    )


def _starts(landscape: Landscape, n: int) -> dict[str, jax.Array]:
    """Equally many chains from each minimum, for the fine and the coarse step alike."""
    minima = np.array([m.position for m in landscape.minima])
    start = jnp.asarray(minima[np.arange(n) % len(minima)], jnp.float32)
    return {"fine": start, "coarse": start}


def _halved(step_size: float) -> Dynamics:
    """Chains of a step and of half that step driven by the same Brownian path, T = 1."""
    half = overdamped(gradient, step_size=step_size / 2)

    def init(position: Any) -> State:
        return State(position, ())

    def step(key: jax.Array, state: State) -> State:
        fine, noise = half.init(state.position["fine"]), jnp.zeros(2)
        for own in jax.random.split(key):
            after = half.step(own, fine)
            noise += after.position - fine.position + step_size / 2 * gradient(fine.position)
            fine = after
        coarse = state.position["coarse"]
        coarse = coarse - step_size * gradient(coarse) + noise
        return State({"fine": fine.position, "coarse": coarse}, ())

    return Dynamics(init, step)


def _run(kernel: Dynamics, starts: Any, steps: float, seed: int) -> Any:
    """Draws (chains, draws, 2), the first third of the time left out."""
    chains = run_chains(
        kernel,
        starts,
        key=jax.random.key(seed),
        burn_in=round(steps / 3),
        n_samples=_DRAWS,
        thin=max(1, round(2 / 3 * steps / _DRAWS)),
    )
    return jax.tree.map(lambda draws: np.asarray(draws, float), chains.draws)


def _shares(landscape: Landscape, draws: Array) -> Array:
    """Each chain's share of draws in each minimum: (chains, minima); chains are independent."""
    minima = np.array([m.position for m in landscape.minima])
    basins = basin_of(draws.reshape(-1, 2), minima).reshape(draws.shape[:2])
    return np.stack([(basins == k).mean(axis=1) for k in range(len(minima))], axis=1)


def _leave(context: Context, landscape: Landscape, learning_rate: float) -> Estimate:
    """The share of SGD runs from the sharp minimum that end elsewhere."""
    N = location.N_READINGS

    def noisy(key: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        reading = jax.random.randint(key, (), 0, N)
        return N * location.slopes(w)[reading] + location.PRIOR_PRECISION * w, None

    kernel = corrected_sgld(noisy, step_size=learning_rate / N, temperature=0.0)
    minima = np.array([m.position for m in landscape.minima])
    starts = jnp.asarray(np.repeat(minima[:1], _CHAINS[context.scale] // 3, axis=0), jnp.float32)
    chains = run_chains(
        kernel,
        starts,
        key=jax.random.key(0),
        burn_in=0,
        n_samples=1,
        thin=round(_SGD_TIME[context.scale] * N / learning_rate),
    )
    ends = basin_of(np.asarray(chains.last.position, float), minima)
    return mean_of((ends != 0).astype(float))


def _noise_scale(learning_rate: float) -> float:
    return learning_rate * (location.N_READINGS - 1)


def _preference(landscape: Landscape, temperature: float) -> float:
    sharp, broad, _ = landscape.probabilities(temperature)
    return float(sharp - broad)


def _half(left: dict[float, Estimate]) -> str:
    g = np.array(list(left))
    share = np.maximum.accumulate([seen.value for seen in left.values()])
    if not share[0] < 0.5 <= share[-1]:
        return "not within the learning rates tried"
    return f"{np.exp(np.interp(0.5, share, np.log(g))):.2f}"


def draw_visits(visits: Visits) -> Picture:
    """The landscape with samples, shares against temperature, and SGD's flight."""
    with house_style():
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        panels = figure.subplots(1, 3)
        _draw_landscape(panels[0], visits)
        _draw_temperature(panels[1], visits)
        _draw_sgd(panels[2], visits)
        svg = to_svg(figure)
    seen = ", ".join(
        f"{share.value:.3f} in the {name} minimum (evidence {p:.3f})"
        for name, share, p in zip(NAMES, visits.at_one, visits.expected, strict=True)
    )
    return Picture(
        name="appendixA",
        svg=svg,
        caption="(a) Cost contours, the basins' border (dashed) and Langevin samples at T = 1. (b) "
        "The time spent in each minimum against the temperature: samples, with two standard "
        "errors, on the lines that quadrature gives. (c) SGD's own noise: the share of runs that "
        "have left the deep and sharp minimum in the end.",
        alt=f"At T = 1 Langevin dynamics spends its time as {seen}.",
    )


def _draw_landscape(axes: Axes, visits: Visits) -> None:
    fine, costs = location.cost_grid(3 * _SHOWN_GRID)
    levels = costs.min() + np.array([0.5, 1, 2, 3, 4, 6, 8, 11, 15])
    axes.contour(fine, fine, costs.T, levels, colors="grey", linewidths=0.6)
    coarse, _ = location.cost_grid(len(visits.basins))
    for k in range(len(visits.minima)):
        inside = (visits.basins == k).T.astype(float)
        axes.contour(coarse, coarse, inside, [0.5], colors="black", linewidths=0.8, linestyles="--")
    x, y = visits.positions.T
    axes.scatter(x, y, s=2, color=COLOURS[0], alpha=0.4, linewidths=0)
    for m in visits.minima:
        axes.annotate(
            m.name,
            tuple(m.position),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
        axes.plot(*m.position, "k+")
    axes.set(xlim=(-4, 5), ylim=(-4, 5), xlabel="w₁", ylabel="w₂", title="(a)")


def _draw_temperature(axes: Axes, visits: Visits) -> None:
    for k, name in enumerate(NAMES):
        axes.plot(_SHOWN_TEMPERATURES, visits.expected_at[:, k], color=COLOURS[k], label=name)
        points = [seen[k] for seen in visits.by_temperature.values()]
        axes.errorbar(
            list(visits.by_temperature),
            [p.value for p in points],
            yerr=[2 * p.std for p in points],
            color=COLOURS[k],
            fmt="o",
            markersize=4,
        )
    axes.set(xscale="log", xlabel="temperature T", ylabel="share of the time", title="(b)")
    axes.set_xticks([0.5, 1, 2, 4])
    plain_log(axes.xaxis)
    axes.legend()


def _draw_sgd(axes: Axes, visits: Visits) -> None:
    points = list(visits.left.values())
    axes.errorbar(
        list(visits.left),
        [p.value for p in points],
        yerr=[2 * p.std for p in points],
        color=COLOURS[0],
        fmt="o-",
        markersize=4,
    )
    axes.axhline(0.5, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="noise scale g", ylabel="share that left", title="(c)")
    axes.set_xticks([0.2, 0.4, 0.8])
    plain_log(axes.xaxis)
