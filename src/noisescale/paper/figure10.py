"""Figure 10, which the paper does not have: the evidence of deep networks, and what it says."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats

from noisescale.evidence.curvature.products import curvature_operator
from noisescale.evidence.curvature.spectrum import leading
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.laplace import log_evidence
from noisescale.evidence.result import NotAMinimumWarning
from noisescale.paper.batches import PRIOR_PRECISION
from noisescale.paper.claims import Judgement, conclude, judge_each
from noisescale.paper.minima import PRIORS, SIZES, Minimum, find_minimum, trained
from noisescale.paper.minima_drawing import Group, draw_labels, draw_minima
from noisescale.paper.runs import Array, short
from noisescale.paper.section import (
    Circumstances,
    Context,
    Findings,
    Measured,
    Measurement,
    Picture,
    Section,
)
from noisescale.seeds import random_stream
from noisescale.uncertainty import Estimate, mean_of

_BOOTSTRAPS = 10_000
_SCALE = 10.0  # by which C36 scales a layer


@dataclass(frozen=True)
class Rescaling:
    """What scaling the layers of a ReLU network by a and 1/a does.

    Attributes:
        outputs: the largest change of an output, relative to the largest output.
        top: the largest Hessian eigenvalue afterwards over before.
        rescaled, kept: relative change of E with the prior rescaled, or kept.
    """

    outputs: float
    top: float
    rescaled: float
    kept: float


@dataclass(frozen=True)
class Data(Measured):
    """The minima that SGD finds: by batch size, with random labels, with L2."""

    true: Group
    random: Group
    l2: Group
    rescaling: Rescaling

    @property
    def small(self) -> int:
        """The small batch that labels and L2 are compared at."""
        return min(self.random)

    @property
    def large(self) -> int:
        """The large batch."""
        return max(self.random)

    @property
    def rows(self) -> list[list[Minimum]]:
        """By seed, the minima at which training succeeded, by batch size."""
        return [_trainable(row) for row in zip(*self.true.values(), strict=True)]


def measure(context: Context) -> Data:
    """Find minima by batch size, with random labels and with L2."""
    sizes = SIZES[context.scale].batch_sizes
    ends = sizes[len(sizes) // 3], sizes[-1]

    def group(batch_sizes: Sequence[int], labels: str = "true", l2: float = 0.0) -> Group:
        find = partial(context.kept, find_minimum, labels=labels, l2=l2)
        return {B: [find(seed=k, batch_size=B) for k in range(context.seeds)] for B in batch_sizes}

    return Data(
        at=context.at,
        true=group(sizes),
        random=group(ends, labels="random"),
        l2=group(ends, l2=PRIOR_PRECISION),
        rescaling=context.kept(rescale),
    )


def judge(data: Data) -> Findings:
    """C32, C36 and C37."""
    return Findings(
        statement=(
            "Section 4 argues that the noise of small batches drives SGD to minima of larger "
            "evidence, which generalise; the paper could not compute the evidence of its network "
            "and argued by analogy. Here it is computed, exactly in the Gauss-Newton sense, for "
            "each minimum that SGD finds: from the training data alone, with the prior precision "
            "that makes the found point most credible, and with other priors beside it."
        ),
        judgements=(
            _judge_analogy(data.at, data.rows),
            _judge_rescaling(data.rescaling),
            _judge_curvature(data),
        ),
        measurements=tuple(_measurements(data)),
        remarks=(
            _rivals(data.rows),
            *_memorised(data.random),
            "The networks were trained without a prior (unless L2 is named), so no prior makes "
            "them exact minima: the cost under it could still fall by the amount given, and the "
            "evidence is that of the found point's neighbourhood.",
            "Gauss-Newton in place of the Hessian: at these minima the fit is so good that the two "
            "nearly agree, and the Gauss-Newton matrix has no negative eigenvalues to leave out.",
        ),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """E beside test accuracy and cross-entropy, and E by labels."""
    true = {B: data.true[B] for B in (data.small, data.large)}
    return draw_minima(data.rows), draw_labels(true, data.random)


def _rivals(rows: list[list[Minimum]]) -> str:
    """What else ranks the minima as E does, so that C32 cannot tell E from it."""
    quantities: dict[str, Callable[[Minimum], float]] = {
        "E": lambda m: m.E["largest evidence"],
        "the batch size itself": lambda m: m.batch_size,
        "the training loss": lambda m: m.train_cross_entropy,
        "the largest Hessian eigenvalue": lambda m: m.top_curvature,
    }
    told = []
    for name, value in quantities.items():
        found = [
            abs(stats.spearmanr([value(m) for m in row], [m.test_accuracy for m in row]).statistic)
            for row in rows
            if len(row) > 2
        ]
        told.append(f"{name} {np.mean(found):.2f}" if found else name)
    return (
        f"C32 cannot discriminate: the size of the rank correlation with test accuracy is, for "
        f"{', for '.join(told)}. All rank the minima of one network by their batch size. What can "
        "tell evidence from its rivals are C42 and C43, in figure 11."
    )


def _memorised(random: Group) -> list[str]:
    """What E says of networks that learnt random labels by heart, and what it cannot be."""
    found = [m.E["largest evidence"] for group in random.values() for m in group if m is not None]
    if not found or min(found) > 0:
        return []
    return [
        f"E of networks that memorised random labels goes down to {min(found):.0f}, as if they "
        "were to be believed. That cannot be the evidence of the model: averaged over all "
        "labellings exp(-E) is 1, so for labels drawn at random an E below -t has a probability "
        "of at most exp(-t). The Gaussian around one point takes directions of no curvature to be "
        "free as far as the prior reaches, and the features that it takes for given were learnt "
        "from these labels. So E ranks minima of one network on the same data; as odds against "
        "guessing it is not to be trusted here, unlike in the linear model of figure 2."
    ]


def _trainable(row: Sequence[Minimum | None]) -> list[Minimum]:
    """Minima whose training succeeded: more than half as accurate as the best."""
    found = [m for m in row if m is not None]
    best = max(m.test_accuracy for m in found)
    return [m for m in found if m.test_accuracy > 0.5 * best]


def _correlations(rows: list[list[Minimum]], prior: str) -> Array:
    """Spearman's correlation of E and test accuracy in each seed."""
    found = []
    for row in rows:
        E = [m.E[prior] for m in row if prior in m.E]
        if len(E) < 3:
            return np.array([])
        accuracy = [m.test_accuracy for m in row]
        found.append(float(stats.spearmanr(E, accuracy).statistic))
    return np.array(found)


def _interval(values: Array) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over seeds."""
    rng = random_stream(0, "figure 10 bootstrap")
    means = values[rng.integers(0, len(values), (_BOOTSTRAPS, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _judge_analogy(at: Circumstances, rows: list[list[Minimum]]) -> Judgement:
    measured, uncertainty = {}, {}
    holds: bool | None = None
    for prior in PRIORS:
        values = _correlations(rows, prior)
        if not len(values):
            continue
        low, high = _interval(values)
        measured[f"Spearman(E, test accuracy), prior {prior}"] = short(values.mean())
        uncertainty[f"95 % interval, prior {prior}"] = [short(low), short(high)]
        if prior == PRIORS[0]:
            holds = True if high < 0 else False if low > 0 else None
    enough = at.decidable and min(len(row) for row in rows) >= 5
    return conclude("C32", [holds], decidable=enough, measured=measured, uncertainty=uncertainty)


def _judge_curvature(data: Data) -> Judgement:
    small, large = data.small, data.large
    labels = _difference(data.random[large], data.true[large])
    batches = _difference(data.true[large], data.true[small])
    return conclude(
        "C37",
        [labels.above(0, by=2), batches.above(0, by=2)],
        decidable=data.at.decidable,
        measured={
            f"random minus true labels, B = {large}": short(labels.value),
            f"B = {large} minus B = {small}, true labels": short(batches.value),
        },
        uncertainty={"standard errors": [short(labels.std), short(batches.std)]},
    )


def _difference(a: list[Minimum | None], b: list[Minimum | None]) -> Estimate:
    """Of the largest Hessian eigenvalues, paired by seed."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return mean_of([x.top_curvature - y.top_curvature for x, y in pairs])


def _judge_rescaling(found: Rescaling) -> Judgement:
    """C36: ReLU layers scaled by a and 1/a, the prior with them or not."""
    invariant = found.outputs < 1e-4 and found.rescaled < 1e-6
    return judge_each(
        "C36",
        [invariant and found.top > 2 and found.kept > 1e-6],
        decidable=True,
        measured={
            "top eigenvalue grows by": short(found.top),
            "relative change of E, prior rescaled": short(found.rescaled),
            "relative change of E, prior kept": short(found.kept),
        },
    )


def rescale(context: Context) -> Rescaling:
    """What rescaling does to the outputs, to E and to the largest Hessian eigenvalue."""
    size = SIZES["smoke" if context.scale == "smoke" else "quick"]
    network, params, pair, _ = trained(context, size, 0, size.batch_sizes[1], "true", 0.0)
    first, second = params
    a = _SCALE
    scaled = ({"w": first["w"] * a, "b": first["b"] * a}, {"w": second["w"] / a, "b": second["b"]})
    prior = PRIOR_PRECISION
    moved = ({"w": prior / a**2, "b": prior / a**2}, {"w": prior * a**2, "b": prior})
    cases = {"before": (params, prior), "rescaled": (scaled, moved), "kept": (scaled, prior)}
    with warnings.catch_warnings():  # nothing here claims to be a minimum
        warnings.simplefilter("ignore", NotAMinimumWarning)
        E = {
            name: log_evidence(network, w, pair, prior_precision=L, method="dual", at="point").E
            or 0.0
            for name, (w, L) in cases.items()
        }
    tops = []
    for w in (params, scaled):
        model = jax_problem(network, w, pair, "categorical").model
        operator = curvature_operator(model, "hessian", precision="float64")
        tops.append(float(leading(operator, 1)[0][0]))
    before, after = (np.asarray(network(w, pair[0])) for w in (params, scaled))
    return Rescaling(
        outputs=float(np.abs(after - before).max() / np.abs(before).max()),
        top=tops[1] / tops[0],
        rescaled=abs(E["rescaled"] / E["before"] - 1),
        kept=abs(E["kept"] / E["before"] - 1),
    )


def _measurements(data: Data) -> Iterator[Measurement]:
    rows = data.rows
    for B in data.true:
        if minima := [m for row in rows for m in row if m.batch_size == B]:
            yield Measurement(f"B = {B}, true labels", _describe(minima), _how(minima))
    for name, group in (("random labels", data.random), (f"L2 {PRIOR_PRECISION:g}", data.l2)):
        for B, members in group.items():
            if minima := [m for m in members if m is not None]:
                yield Measurement(f"B = {B}, {name}", _describe(minima), _how(minima))


def _describe(found: list[Minimum]) -> str:
    E = mean_of([m.E["largest evidence"] for m in found])
    accuracy = mean_of([m.test_accuracy for m in found])
    entropy = mean_of([m.test_cross_entropy for m in found])
    return f"E = {E}, test accuracy {accuracy}, test cross-entropy {entropy}"


def _how(found: list[Minimum]) -> str:
    gap = np.mean([m.gap for m in found])
    prior = np.exp(np.mean(np.log([m.prior_precision for m in found])))
    top = np.mean([m.top_curvature for m in found])
    return (
        f"{len(found)} seeds, prior precision {prior:.2g}, cost could fall by {gap:.2g} nats under "
        f"it, train accuracy {np.mean([m.train_accuracy for m in found]):.3f}, largest Hessian "
        f"eigenvalue {top:.3g}"
    )


SECTION = Section("10", "Figure 10: the evidence of deep networks", measure, judge, draw)
