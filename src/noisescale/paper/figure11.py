"""Figure 11, which the paper does not have: evidence that may be bet on."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from noisescale.paper.batches import SMALL
from noisescale.paper.bets import SIZES, AtMap, Bet, Sampled, bet, polish, polish_narrow, sample
from noisescale.paper.bets_drawing import draw_labels, draw_ladder, named
from noisescale.paper.claims import Judgement, conclude, judge_each
from noisescale.paper.runs import short
from noisescale.paper.section import (
    Circumstances,
    Context,
    Findings,
    Measured,
    Measurement,
    Picture,
    Section,
)
from noisescale.uncertainty import Estimate, mean_of

LABELS = ("true", "random")
_SEEDS = 5  # that the criteria ask for
_RARE = -7.0  # an E below it has a probability of at most one in a thousand on random labels
_SLIGHT = -3.0  # how far below 0 the Laplace E of random labels may be in C44
_CERTAIN = math.log(20)  # by which a sampled E may be too low with a probability of 5 %


@dataclass(frozen=True)
class Data(Measured):
    """E at the MAP, by bets and by sampling.

    Attributes:
        maps: networks from the small batch, by seed, labels and prior, at their MAPs.
        large: from the full batch and the same initialisations, true labels, prior 0.1.
        bets: by seed and batch size, true labels; the last batch size is all examples there are.
        random_bets: of the small batch, random labels.
        narrow: the network that is sampled, by seed, labels and prior, at its MAPs.
        sampled: the same, sampled.
    """

    maps: list[AtMap]
    large: list[AtMap]
    bets: list[Bet]
    random_bets: list[Bet]
    narrow: list[AtMap]
    sampled: list[Sampled]

    def pairs(self, labels: str, prior: float) -> list[tuple[AtMap, Sampled]]:
        """The narrow network at its MAP and sampled, by seed."""
        at_map = {(m.seed, m.labels, m.prior_precision): m for m in self.narrow}
        return [
            (at_map[s.seed, labels, prior], s)
            for s in self.sampled
            if (s.labels, s.prior_precision) == (labels, prior)
        ]


def measure(context: Context) -> Data:
    """Polish, bet and sample: each network is a part, made by the workers and kept."""
    size, seeds = SIZES[context.scale], range(context.seeds)
    small, full, first = SMALL, size.ladder[-1], size.precisions[:1]
    cases = [(k, labels) for k in seeds for labels in LABELS]
    calls: dict[str, list[partial[Any]]] = {
        "maps": [
            partial(
                polish, seed=k, batch_size=small, labels=labels, prior_precisions=size.precisions
            )
            for k, labels in cases
        ],
        "large": [
            partial(polish, seed=k, batch_size=full, labels="true", prior_precisions=first)
            for k in seeds
        ],
        "bets": [
            partial(bet, seed=k, batch_size=B, labels="true") for k in seeds for B in size.ladder
        ],
        "random_bets": [partial(bet, seed=k, batch_size=small, labels="random") for k in seeds],
        "narrow": [partial(polish_narrow, seed=k, labels=labels) for k, labels in cases],
        "sampled": [
            partial(sample, seed=k, labels=labels, prior_precision=prior)
            for k, labels in cases
            for prior in size.precisions
        ],
    }
    context.make_ahead({call: _seconds(call) for group in calls.values() for call in group})
    found: dict[str, list[Any]] = {
        name: [context.kept(call.func, **call.keywords) for call in group]
        for name, group in calls.items()
    }
    return Data(
        at=context.at,
        maps=list(chain.from_iterable(found["maps"])),
        large=list(chain.from_iterable(found["large"])),
        bets=found["bets"],
        random_bets=found["random_bets"],
        narrow=list(chain.from_iterable(found["narrow"])),
        sampled=found["sampled"],
    )


def _seconds(call: partial[Any]) -> float:
    """What a part may take at full scale on one core: the longest are to begin first."""
    given = call.keywords
    if call.func is polish:
        return 10 + 200.0 * len(given["prior_precisions"])
    if call.func is bet:
        return 25 + 0.7 * min(300, int(given["batch_size"]))
    return 85.0 if call.func is sample else 60.0


def judge(data: Data) -> Findings:
    """C41 to C44."""
    return Findings(
        statement=(
            "Figure 10 gives networks that memorised random labels an E of minus a thousand: its "
            "points are no minima under any prior. Here are three numbers that may be believed: E "
            "at the MAP under a prior fixed beforehand; E by annealed importance sampling, an "
            "upper bound; and the prequential E, for which a network is trained on what was seen "
            "and pays the log loss of what comes next, so that random labels are believed with "
            "odds of e^t once in e^t times at the most."
        ),
        judgements=(
            *_judge_random(data),
            _judge_noise(data),
            _judge_ladder(data),
            _judge_sampling(data),
        ),
        measurements=tuple(_measurements(data)),
        remarks=(
            "E at the MAP is that of one mode of a ragged posterior; sampling starts from the "
            "prior and finds others. The sampled E is an upper bound: where E at the MAP lies "
            "above it by more than the errors given, the Laplace approximation is off by that "
            "much at least; where it lies below, either may be.",
            *_off_the_map(data),
            "The prequential E is of the training procedure, not of one network: it pays for "
            "learning from few examples too, which the last block alone does not.",
        ),
    )


def _off_the_map(data: Data) -> Iterator[str]:
    """A sentence on points where the descent ended before it reached a MAP, if there are any."""
    points = [*data.maps, *data.large, *data.narrow]
    off = [m for m in points if m.status != "map"]
    if off:
        yield (
            f"{len(off)} of {len(points)} descents ended where the cost could still fall by more "
            f"than the 0.1 nats that a MAP allows, by {max(m.left for m in off):.2g} at the most: "
            "their E counts below one nat, as everywhere in this package; on a saddle it would not."
        )


def draw(data: Data) -> tuple[Picture, ...]:
    """E by labels and kind, and the ladder of batch sizes."""
    size = SIZES[data.at.scale]
    tables = {name: _table(data, name) for name in ("last_loss", "E", "test_accuracy")}
    return (
        draw_labels(data.maps, {"true": data.bets, "random": data.random_bets}, size.precisions),
        # The full batch is that of the last training, half of all examples.
        draw_ladder(tables, full=size.n_train - size.blocks[-1]),
    )


def _priors(data: Data) -> tuple[float, ...]:
    return SIZES[data.at.scale].precisions


def _decidable(at: Circumstances) -> bool:
    return at.decidable and at.seeds >= _SEEDS


def _E(m: AtMap) -> float:  # noqa: N802, the paper's name
    """E at a minimum; NaN if there is none, or on a saddle."""
    return math.nan if m.status == "saddle" else m.E


def _sign(m: AtMap, *, positive: bool) -> bool | None:
    """Whether E has the sign; None if there is no E."""
    return None if math.isnan(_E(m)) else (m.E > 0) == positive


def _judge_random(data: Data) -> Iterator[Judgement]:
    """C41: the claim at the MAP, and beside it the identity that prequential E must satisfy."""
    parts = [_sign(m, positive=m.labels == "random") for m in data.maps]
    yield conclude(
        "C41",
        parts,
        decidable=_decidable(data.at),
        measured={
            f"E, {labels} labels, prior {prior:g}": _range(
                m.E for m in data.maps if (m.labels, m.prior_precision) == (labels, prior)
            )
            for labels in LABELS
            for prior in _priors(data)
        },
        convention="E at the MAP",
    )
    E = [b.E for b in data.random_bets]
    yield judge_each(
        "C41",
        [min(E) >= _RARE],
        decidable=_decidable(data.at),
        measured={"prequential E, random labels": _range(E)},
        convention="identity: prequential E",
        primary=False,
    )


def _judge_noise(data: Data) -> Judgement:
    """C42: small against full batch from the same initialisations, at their MAPs."""
    prior = _priors(data)[0]
    chosen = [m for m in data.maps if (m.labels, m.prior_precision) == ("true", prior)]
    small = {m.seed: _E(m) for m in chosen}
    difference = mean_of([small[m.seed] - _E(m) for m in data.large]).interval()
    return conclude(
        "C42",
        [_below_zero(difference)],
        decidable=_decidable(data.at),
        measured=short(difference.value),
        uncertainty={"95 % interval": [short(difference.low), short(difference.high)]},
    )


def _below_zero(difference: Estimate) -> bool | None:
    if difference.high < 0:
        return True
    return False if difference.low > 0 else None


def _table(data: Data, name: str) -> dict[int, list[float]]:
    """A number of each bet on true labels, by batch size and then by seed."""
    ladder = SIZES[data.at.scale].ladder
    return {B: [getattr(b, name) for b in data.bets if b.batch_size == B] for B in ladder}


def _judge_ladder(data: Data) -> Judgement:
    """C43: an interior batch size pays least for the last block, that of the best accuracy."""
    losses, accuracies = _table(data, "last_loss"), _table(data, "test_accuracy")
    ladder = list(losses)
    best = int(np.argmin([np.mean(losses[B]) for B in ladder]))
    accurate = int(np.argmax([np.mean(accuracies[B]) for B in ladder]))
    ends = [_difference(losses[ladder[end]], losses[ladder[best]]) for end in (0, -1)]
    interior = 0 < best < len(ladder) - 1
    worse = [_below_zero(Estimate(-e.value, e.std, -e.high, -e.low, e.n)) for e in ends]
    sums = _table(data, "E")
    return conclude(
        "C43",
        [abs(best - accurate) <= 1, interior, *(worse if interior else [])],
        decidable=_decidable(data.at),
        measured={
            "best B by the last block": named(ladder[best], ladder),
            "best B by test accuracy": named(ladder[accurate], ladder),
            "best B by the whole sum": named(min(sums, key=lambda B: np.mean(sums[B])), ladder),
            "the smallest B pays more, nats an example": short(ends[0].value),
            "the full batch pays more": short(ends[1].value),
        },
        uncertainty={"95 % intervals": [[short(e.low), short(e.high)] for e in ends]},
    )


def _difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Paired by seed."""
    return mean_of(np.subtract(a, b)).interval()


def _judge_sampling(data: Data) -> Judgement:
    """C44: both E negative for true labels; the Laplace E of random labels not far below 0."""
    parts: list[bool | None] = []
    measured, uncertainty = {}, {}
    for labels in LABELS:
        for prior in _priors(data):
            group = data.pairs(labels, prior)
            for m, s in group:
                if labels == "true":
                    parts += [s.E + _CERTAIN < 0, _sign(m, positive=False)]
                else:
                    parts.append(None if math.isnan(_E(m)) else m.E >= _SLIGHT)
            name = f"{labels} labels, prior {prior:g}"
            gap = mean_of([m.E - s.E for m, s in group])
            measured[f"E sampled, {name}"] = short(float(np.mean([s.E for _, s in group])))
            measured[f"E at the MAP minus sampled, {name}"] = short(gap.value)
            uncertainty[name] = short(gap.std)
    return conclude(
        "C44",
        parts,
        decidable=_decidable(data.at),
        measured=measured,
        uncertainty=uncertainty,
    )


def _range(values: Iterable[float]) -> list[float | None]:
    """The lowest and the highest over seeds; None where there is none."""
    found = list(values)
    return [short(min(found)), short(max(found))] if found else [None, None]


def _measurements(data: Data) -> Iterator[Measurement]:
    for prior in _priors(data):
        for labels in LABELS:
            group = [m for m in data.maps if (m.labels, m.prior_precision) == (labels, prior)]
            yield Measurement(
                f"E at the MAP, {labels} labels, prior {prior:g}",
                str(mean_of([m.E for m in group])),
                f"B = {SMALL}, {_reached(group)}",
            )
    yield Measurement(
        f"E at the MAP, true labels, prior {_priors(data)[0]:g}, from the full batch",
        str(mean_of([m.E for m in data.large])),
        _reached(data.large),
    )
    ladder = SIZES[data.at.scale].ladder
    for B in ladder:
        bets = [b for b in data.bets if b.batch_size == B]
        yield Measurement(
            f"prequential, true labels, B = {named(B, ladder)}",
            f"E = {mean_of([b.E for b in bets])}, last block "
            f"{mean_of([b.last_loss for b in bets])} nats an example, test accuracy "
            f"{mean_of([b.test_accuracy for b in bets])}",
            _bets_how(bets),
        )
    yield Measurement(
        f"prequential, random labels, B = {SMALL}",
        f"E = {mean_of([b.E for b in data.random_bets])}",
        _bets_how(data.random_bets),
    )
    for prior in _priors(data):
        for labels in LABELS:
            maps, drawn = zip(*data.pairs(labels, prior), strict=True)
            yield Measurement(
                f"E sampled, {labels} labels, prior {prior:g}",
                str(mean_of([s.E for s in drawn])),
                f"an upper bound; at the MAP {mean_of([m.E for m in maps])}; effective "
                f"chains {np.mean([s.effective_sample_size for s in drawn]):.2g}, acceptance "
                f"{np.mean([s.acceptance for s in drawn]):.2f}, {_reached(maps)}",
            )


def _bets_how(group: Sequence[Bet]) -> str:
    plain = mean_of([b.E_plain for b in group])
    temperatures = ", ".join(
        "null" if math.isnan(b.temperature) else f"{b.temperature:g}" for b in group
    )
    return (
        f"{len(group)} seeds; without the mixture E = {plain}, last block "
        f"{np.mean([b.last_loss_plain for b in group]):.3g}; temperature believed: {temperatures}"
    )


def _reached(group: Sequence[AtMap]) -> str:
    at_map = sum(m.status == "map" for m in group)
    left = max(m.left for m in group)
    return f"{at_map} of {len(group)} at a MAP, {left:.2g} nats left at the most"


SECTION = Section("11", "Figure 11: evidence that may be bet on", measure, judge, draw)
