"""What to do with a measured critical batch size: words, a table, a curve.

With B the run's batch size and b the critical one, a run is *below* it if B < b/2, *above* it if
B > 2 b, and *near* it between: there neither updates nor examples cost more than three times their
least (McCandlish et al. 2018). b is known by its interval alone, so the answer is every one of
these that some b of the interval gives, and every cost is a range over it:

    updates(k B)/updates(B)   = (1 + b/(k B))/(1 + b/B)   from 1 (b = 0)   to 1/k (b infinite),
    examples(k B)/examples(B) = (k B + b)/(B + b)         from k (b = 0)   to 1   (b infinite).

>>> advise(Estimate(400.0, low=300.0, high=600.0), batch_size=64, learning_rate=0.1, momentum=0.0,
...        n_train=10_000).position
'below'
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescale.checks import check_number
from noisescale.noise.scale import noise_scale
from noisescale.noise.watch.ratio import in_words
from noisescale.notebook import Displayed
from noisescale.uncertainty import Estimate, finite_only

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FACTORS = (0.5, 1.0, 2.0, 4.0)
_PLACES = ("below", "near", "above")
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cost:
    """A batch size: updates and examples to the same loss, as multiples of the run's own."""

    batch_size: float
    updates: Estimate
    examples: Estimate


@dataclass(frozen=True)
class Advice(Displayed):
    """Where a run stands, what other batch sizes would cost, and what may grow.

    Attributes:
        position: ``"below"``, ``"near"`` or ``"above"`` the critical batch size; ``"below or
            near"`` or ``"near or above"`` where the interval allows both; ``"unknown"``.
        batch_size: the run's, in units.
        critical_batch_size: with its interval; a lower bound alone while not resolved.
        costs: half, the same, twice and four times the batch.
        noise_scale: the paper's g of the run; None if it is not known.
        unit: what batch sizes are counted in.
        sentences: the advice in words.
    """

    position: str
    batch_size: float
    critical_batch_size: Estimate
    costs: tuple[Cost, ...]
    noise_scale: float | None
    unit: str
    sentences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON; None for what is not known or not finite."""
        plain: dict[str, Any] = finite_only(asdict(self))
        return plain

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """Draw updates and examples against the batch size into ``where``: axes or a file."""
        from noisescale.drawing import drawn
        from noisescale.noise.watch.drawing import draw_advice

        return drawn(lambda axes: draw_advice(self, axes), where)

    def _sketched(self) -> bool:
        return self.position != "unknown"

    def rows(self) -> list[tuple[str, str, str]]:
        """The table of costs as text: batch size, updates, examples."""
        return [
            (f"{cost.batch_size:.4g}", _range(cost.updates), _range(cost.examples))
            for cost in self.costs
        ]

    def __repr__(self) -> str:
        table = [("batch size", "updates", "examples"), *self.rows()]
        widths = [max(len(row[k]) for row in table) for k in range(3)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join([*self.sentences, *lines])


def advise(
    critical_batch_size: Estimate,
    *,
    batch_size: float,
    latest: Estimate | None = None,
    learning_rate: float = math.nan,
    momentum: float = math.nan,
    dampening: float = 0.0,
    n_train: int | None = None,
    n_examples: int | None = None,
    unit: str = "example",
    adam: bool = False,
) -> Advice:
    """Advice for a run, from its critical batch size and its recipe.

    Args:
        critical_batch_size: with its interval; NaN with a lower bound if it is not resolved.
        batch_size: the run's, in units.
        latest: the critical batch size of the latest stretch. While it is above the average, as it
            is in a run's first descent, nothing says that the batch should not grow.
        learning_rate, momentum: the optimiser's; NaN if unknown, momentum NaN if it is not SGD.
        dampening: SGD's; NaN if there is no one noise scale.
        n_train: the size of the training set, for the noise scale.
        n_examples: examples in a batch, if units are tokens.
        unit: ``"example"`` or ``"token"``.
        adam: whether the optimiser divides by roots of second moments.
    """
    B = check_number("batch_size", batch_size, "above 0", lambda v: v > 0)
    b = critical_batch_size
    low, high = _bounds(b)
    effective = learning_rate * (1 - dampening)
    g = _scale(effective, momentum, n_train, B if n_examples is None else n_examples)
    place = _position(B, low, high)
    costs = tuple(costs_at(B, k, b) for k in _FACTORS)
    sentences = (
        _where(place, B, b, unit),
        _what_may_grow(place, costs, b, latest, _grown(learning_rate, momentum, adam), g),
    )
    return Advice(place, B, b, costs, g, unit, sentences)


def _position(B: float, low: float, high: float) -> str:
    possible = [
        place
        for place, reached in zip(
            _PLACES, (high > 2 * B, low <= 2 * B and high >= B / 2, low < B / 2), strict=True
        )
        if reached
    ]
    return " or ".join(possible) if len(possible) < 3 else _UNKNOWN


def costs_at(batch_size: float, factor: float, critical_batch_size: Estimate) -> Cost:
    """What ``factor`` times the batch would cost, over the interval of the critical one."""
    B, k, b = batch_size, factor, critical_batch_size
    updates = [_updates(k, x / B) for x in (b.value, *_bounds(b))]
    examples = [k * ratio for ratio in updates]
    return Cost(
        k * B,
        *(Estimate(at, low=min(ends), high=max(ends)) for at, *ends in (updates, examples)),
    )


def _bounds(b: Estimate) -> tuple[float, float]:
    """The interval, from 0 to infinity where an end is not known."""
    low = b.low if b.low >= 0 else 0.0  # NaN is not
    return low, b.high if b.high >= low else math.inf


def _updates(k: float, x: float) -> float:
    """(1 + x/k)/(1 + x) with x = b/B, which may be infinite."""
    return 1 / k if x == math.inf else (1 + x / k) / (1 + x)


def _scale(
    learning_rate: float, momentum: float, n_train: int | None, examples: float
) -> float | None:
    known = learning_rate > 0 and 0 <= momentum < 1 and n_train is not None
    if not known or examples > n_train:  # type: ignore[operator]
        return None
    return noise_scale(learning_rate, round(examples), n_train, momentum)  # type: ignore[arg-type]


def _where(place: str, B: float, b: Estimate, unit: str) -> str:
    size = f"A batch of {B:.4g} {unit}s"
    if math.isnan(b.value):
        found = f"which is not resolved yet: at least {b.low:.3g}" if b.low > 0 else ""
        found = found or "which is not resolved yet"
    else:
        found = str(b)
    if place == _UNKNOWN:
        return f"{size} may lie below, near or above the critical batch size, {found}."
    return f"{size} is {place} the critical batch size, {found}."


def _what_may_grow(
    place: str,
    costs: tuple[Cost, ...],
    b: Estimate,
    latest: Estimate | None,
    rate: str,
    g: float | None,
) -> str:
    half, _, twice, _ = costs
    kept = "" if g is None else f", which keeps the noise scale near g = {g:.3g}"
    more = f"twice the batch would take {_range(twice.updates)} of the updates"
    cost = f"and {_range(twice.examples)} of the examples"
    less = f"half of it {_range(half.examples)} of the examples"
    if place == _UNKNOWN or math.isnan(b.value):
        return f"Leave batch and learning rate until more updates are measured: {more} {cost}."
    if place == "below":
        return f"Batch and learning rate may grow together ({rate}{kept}): {more} {cost}."
    if place == "below or near":
        return (
            f"The batch may grow, and the learning rate with it ({rate}{kept}), if updates matter "
            f"more than examples: {more} {cost}."
        )
    if place == "near":
        return (
            f"Both have their price here: {more} {cost}, {less}. If the batch grows, so should the "
            f"learning rate ({rate}{kept})."
        )
    if latest is not None and _rises(latest, b):
        return (
            f"The critical batch size still rises ({in_words(latest)} in the latest updates), as "
            f"it does while the loss first falls: ask again later in the run. Now {more} {cost}."
        )
    hardly = "should not grow" if place == "above" else "need not grow"
    larger = "" if g is None else f" (it doubles g, {g:.3g} now)"
    return (
        f"The batch {hardly}: {more} {cost}, {less}. What this batch does allow is a larger "
        f"learning rate{larger}, if the loss still falls with it."
    )


def _rises(latest: Estimate, average: Estimate) -> bool:
    """Whether the latest stretch lies above the average, or may lie far above it."""
    return latest.value > average.high or latest.low > average.value


def _grown(learning_rate: float, momentum: float, adam: bool) -> str:
    """As a factor of the whole schedule: the rate of the moment may have decayed."""
    if not adam and math.isnan(learning_rate * momentum):
        return "in proportion for SGD, by the square root for Adam; no rule is known for others"
    if adam:
        return "by the square root: peak learning rate x 1.41 for twice the batch"
    return "in proportion: peak learning rate x 2 for twice the batch"


def _range(ratio: Estimate) -> str:
    """A ratio as people read it: the value if there is one, and its range if it has any."""
    if math.isclose(ratio.low, ratio.high):
        return f"{ratio.high:.2f}"
    ends = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return ends if math.isnan(ratio.value) else f"{ratio.value:.2f} ({ends})"
