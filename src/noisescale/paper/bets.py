"""What may be staked on a network: E at its MAP, sampled, and prequential; behind figure 11."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.evidence.annealed import annealed_evidence
from noisescale.evidence.laplace import log_evidence
from noisescale.evidence.prequential import prequential_evidence
from noisescale.evidence.prequential.jax_fit import fit_function
from noisescale.evidence.result import Evidence, NotAMinimumWarning
from noisescale.paper.batches import LEARNING_RATE, MOMENTUM, N_CLASSES, SMALL
from noisescale.paper.section import Workplace
from noisescale.seeds import random_stream
from noisescale.training import DenseNetwork, paper_network, train

_PRECISIONS = (0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Size:
    """How much a scale does.

    Attributes:
        n_train, blocks, widths, steps: of the paper's network; the blocks of the bets add up.
        ladder: batch sizes; the last stands for all examples there are.
        few, narrow: examples and widths of the network that is sampled.
        chains, temperatures, leapfrog: of the sampling.
        precisions: of the priors, the first that of C42.
    """

    n_train: int
    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    steps: int
    ladder: tuple[int, ...]
    few: int
    narrow: tuple[int, ...]
    chains: int
    temperatures: int
    leapfrog: int
    precisions: tuple[float, ...] = _PRECISIONS


_LADDER = (10, 14, 20, 30, 45, 68, 100, 1_000)
SIZES = {
    "smoke": Size(
        n_train=20,
        blocks=(10, 10),
        widths=(784, 5, 10),
        steps=50,
        ladder=(10, 30),
        few=20,
        narrow=(784, 5, 10),
        chains=4,
        temperatures=20,
        leapfrog=2,
        precisions=(0.1,),
    ),
    "quick": Size(
        n_train=250,
        blocks=(30, 30, 65, 125),
        widths=(784, 100, 10),
        steps=1_000,
        ladder=(10, 30, 100, 1_000),
        few=100,
        narrow=(784, 30, 10),
        chains=8,
        temperatures=200,
        leapfrog=5,
    ),
    "full": Size(
        n_train=1_000,
        blocks=(30, 30, 65, 125, 250, 500),
        widths=paper_network().widths,
        steps=10_000,
        ladder=_LADDER,
        few=200,
        narrow=(784, 100, 10),
        chains=8,
        temperatures=1_000,
        leapfrog=8,
    ),
}


@dataclass(frozen=True)
class AtMap:
    """A trained network, polished to its MAP under a fixed prior, and its Laplace evidence there.

    Attributes:
        E: the paper's; NaN if half the decrement is above one nat, so that it is withheld.
        status: of the descent: ``map``, ``stalled`` or ``saddle``.
        left: nats by which the cost could still fall.
    """

    seed: int
    batch_size: int
    labels: str
    prior_precision: float
    E: float
    status: str
    left: float


@dataclass(frozen=True)
class Bet:
    """The prequential evidence of one recipe on one order of its examples.

    Attributes:
        E: with the mixture over temperatures; the whole sum.
        E_plain: of the predictions as they are, without the mixture.
        last_loss, last_loss_plain: nats an example of the last block, likewise.
        test_accuracy, test_cross_entropy: of the network that predicted the last block.
        temperature: that the mixture believes most in the end; NaN for the null model.
    """

    seed: int
    batch_size: int
    labels: str
    E: float
    E_plain: float
    last_loss: float
    last_loss_plain: float
    test_accuracy: float
    test_cross_entropy: float
    temperature: float


@dataclass(frozen=True)
class Sampled:
    """E of the narrow network by annealed sampling, an upper bound."""

    seed: int
    labels: str
    prior_precision: float
    E: float
    E_std: float
    effective_sample_size: float
    acceptance: float


def polish(
    context: Workplace, seed: int, batch_size: int, labels: str, prior_precisions: Sequence[float]
) -> list[AtMap]:
    """Train the paper's network without L2, then descend to the MAP under each prior from there."""
    context.progress.line(f"figure 11: MAP, seed {seed}, B = {batch_size}, {labels} labels")
    size = SIZES[context.scale]
    network = DenseNetwork(size.widths)
    pair = labelled(context, seed, size.n_train, labels)
    params = trained(network, pair, seed, batch_size, size.steps)
    return [
        _at_map(network, params, pair, seed, batch_size, labels, prior)
        for prior in prior_precisions
    ]


def polish_narrow(context: Workplace, seed: int, labels: str) -> list[AtMap]:
    """The same of the network that is sampled, under all priors."""
    context.progress.line(f"figure 11: MAP of the narrow network, seed {seed}, {labels} labels")
    size = SIZES[context.scale]
    network = DenseNetwork(size.narrow)
    pair = labelled(context, seed, size.few, labels)
    params = trained(network, pair, seed, SMALL, size.steps)
    return [_at_map(network, params, pair, seed, SMALL, labels, prior) for prior in size.precisions]


def bet(context: Workplace, seed: int, batch_size: int, labels: str) -> Bet:
    """Train on the past and pay for the next block, one order, networks without L2."""
    context.progress.line(f"figure 11: bets, seed {seed}, B = {batch_size}, {labels} labels")
    size = SIZES[context.scale]
    data = context.data.subset(n_train=size.n_train, seed=seed)
    network = DenseNetwork(size.widths)
    fit = _Remembering(
        fit_function(
            network,
            network.init,
            batch_size=batch_size,
            learning_rate=LEARNING_RATE,
            steps=size.steps,
            momentum=MOMENTUM,
            cost_convention="per_class",
        )
    )
    found = prequential_evidence(
        fit,
        labelled(context, seed, size.n_train, labels),
        blocks=size.blocks,
        orders=1,
        n_classes=N_CLASSES,
        seed=seed,
    )
    p = fit.predict(data.x_test)
    own = p[np.arange(len(p)), data.y_test]
    plain = found.temperatures.index(1.0)
    losses = found.losses[0, :, plain]
    believed = int(np.argmax(found.weights[0]))
    return Bet(
        seed=seed,
        batch_size=batch_size,
        labels=labels,
        E=found.E,
        E_plain=found.log_null + float(found.null_losses[0, 0] + losses.sum()),
        last_loss=float(found.table["loss"].iloc[-1]),
        last_loss_plain=float(losses[-1]) / size.blocks[-1],
        test_accuracy=float(np.mean(p.argmax(axis=1) == data.y_test)),
        test_cross_entropy=float(-np.log(np.maximum(own, 1e-30)).mean()),
        temperature=(*found.temperatures, math.nan)[believed],
    )


def sample(context: Workplace, seed: int, labels: str, prior_precision: float) -> Sampled:
    """Anneal the narrow network from the prior."""
    context.progress.line(
        f"figure 11: sampling, seed {seed}, {labels} labels, prior {prior_precision:g}"
    )
    size = SIZES[context.scale]
    network = DenseNetwork(size.narrow)
    pair = labelled(context, seed, size.few, labels)
    sampled = annealed_evidence(
        network,
        network.init(seed),
        pair,
        prior_precision=prior_precision,
        n_chains=size.chains,
        n_temperatures=size.temperatures,
        n_leapfrog=size.leapfrog,
        seed=seed,
        progress=context.progress,
    )
    assert sampled.E is not None
    return Sampled(
        seed=seed,
        labels=labels,
        prior_precision=prior_precision,
        E=sampled.E,
        E_std=sampled.log_evidence_std,
        effective_sample_size=sampled.effective_sample_size,
        acceptance=float(sampled.acceptance.mean()),
    )


def labelled(context: Workplace, seed: int, n: int, labels: str) -> tuple[Any, NDArray[np.int32]]:
    """Images with their own labels, or with labels drawn independently of them and each other."""
    data = context.data.subset(n_train=n, seed=seed)
    if labels == "true":
        return data.x_train, data.y_train
    drawn = random_stream(seed, "iid labels").integers(0, N_CLASSES, n)
    return data.x_train, drawn.astype(np.int32)


def trained(
    network: DenseNetwork, pair: tuple[Any, Any], seed: int, batch_size: int, steps: int
) -> Any:
    """Parameters after the paper's SGD without L2."""
    return train(
        network,
        network.init(seed),
        pair,
        learning_rate=LEARNING_RATE,
        momentum=MOMENTUM,
        batch_size=min(batch_size, len(pair[1])),
        steps=steps,
        cost_convention="per_class",
        seed=seed,
        evaluate_at="final",
    ).params


def _at_map(
    network: DenseNetwork,
    params: Any,
    pair: tuple[Any, Any],
    seed: int,
    batch_size: int,
    labels: str,
    prior_precision: float,
) -> AtMap:
    with warnings.catch_warnings():  # what is no minimum is told by its status
        warnings.simplefilter("ignore", NotAMinimumWarning)
        found: Evidence = log_evidence(
            network, params, pair, prior_precision=prior_precision, method="dual", at="map"
        )
    assert found.map is not None
    return AtMap(
        seed=seed,
        batch_size=batch_size,
        labels=labels,
        prior_precision=prior_precision,
        E=math.nan if found.E is None else found.E,
        status=found.map.status.value,
        left=found.map.half_decrement,
    )


class _Remembering:
    """A fit that remembers how its last network predicts."""

    def __init__(self, fit: Callable[..., Any]) -> None:
        self._fit = fit
        self.predict: Callable[[Any], Any] = lambda x: x

    def __call__(self, x: Any, y: Any, *, seed: int) -> Callable[[Any], Any]:
        self.predict = self._fit(x, y, seed=seed)
        return self.predict
