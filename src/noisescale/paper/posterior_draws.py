"""Appendix A's last sentence: does a single posterior sample beat the cost's minimum?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from noisescale.data import Dataset, balanced_binary
from noisescale.evidence.linear.path import maximise_evidence
from noisescale.evidence.linear.regression import check_pair, linear_problem
from noisescale.likelihood import LIKELIHOODS
from noisescale.noise.diagnostics import effective_sample_size, split_r_hat
from noisescale.noise.posterior import PosteriorSamples, langevin
from noisescale.paper.batches import N_TRAIN, network_at
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.logistic import n_test
from noisescale.paper.runs import Array, short
from noisescale.paper.section import Circumstances, Context, Measurement
from noisescale.training import logistic_regression, train
from noisescale.training.evaluation import accuracy_and_cross_entropy
from noisescale.uncertainty import mean_of

# The weakest prior at which this network's posterior is sampled to convergence in minutes: at the
# paper's 0.1 the flat directions take a hundred times longer.
_NETWORK_PRECISION = 10.0
_NETWORK_STEP = 1.3e-5  # a tenth of what is stable at the curvature of typical samples
_DESCENT = {"smoke": 20, "quick": 300, "full": 1_500}
_NETWORK: dict[str, dict[str, Any]] = {
    "smoke": {"burn_in": 4, "n_samples": 4, "thin": 1},
    "quick": {"burn_in": 100, "n_samples": 10, "thin": 10},
    "full": {"burn_in": 1_000, "n_samples": 20, "thin": 100},
}
_LOGISTIC: dict[str, dict[str, Any]] = {
    "smoke": {"n_chains": 2, "burn_in": 100, "n_samples": 10, "thin": 10},
    "quick": {"n_chains": 4, "burn_in": 3_000, "n_samples": 50, "thin": 100},
    "full": {"n_chains": 4, "burn_in": 10_000, "n_samples": 200, "thin": 200},
}
MODELS = ("the paper's network", "logistic regression")


@dataclass(frozen=True)
class Draws:
    """One seed: test errors and cross-entropies of the minimum, of samples, and of their mean."""

    prior_precision: float
    minimum: tuple[float, float]
    samples: Array  # (chains, draws, 2)
    averaged: tuple[float, float]
    r_hat: float  # of the test error

    @property
    def better(self) -> Array:
        """Whether each sample's test error is below the minimum's: (chains, draws)."""
        return (self.samples[..., 0] < self.minimum[0]).astype(float)


def measure_draws(context: Context) -> dict[str, list[Draws]]:
    """Both models, one entry a seed."""
    return {
        model: [context.kept(one, seed=seed) for seed in range(context.seeds)]
        for model, one in zip(MODELS, (draws_of_network, draws_of_logistic), strict=True)
    }


def judge_draws(at: Circumstances, draws_by: dict[str, list[Draws]]) -> list[Judgement]:
    """C38: the fraction of samples with lower error, its interval wholly above one half."""
    judgements = []
    for model, draws in draws_by.items():
        fraction, low, high = fraction_better(draws)
        judgements.append(
            conclude(
                "C38",
                [True if low > 0.5 else False if high < 0.5 else None],
                decidable=at.decidable,
                measured={"fraction of samples with lower test error": short(fraction)},
                uncertainty={"95 % interval": [short(low), short(high)], "seeds": len(draws)},
                convention=model,
                primary=model == MODELS[0],
            )
        )
    return judgements


def describe_draws(draws_by: dict[str, list[Draws]]) -> list[Measurement]:
    """Errors and cross-entropies, for the report."""
    rows = []
    for model, draws in draws_by.items():
        precision = np.mean([d.prior_precision for d in draws])
        how = f"lambda = {precision:.3g}, worst R-hat {max(d.r_hat for d in draws):.2f}"
        for k, metric in enumerate(("error", "cross-entropy")):
            of = [
                mean_of(values)
                for values in zip(
                    *((d.minimum[k], d.samples[..., k].mean(), d.averaged[k]) for d in draws),
                    strict=True,
                )
            ]
            told = f"{of[0]} at the minimum, {of[1]} of a sample, {of[2]} averaged over samples"
            rows.append(Measurement(f"test {metric}, {model}", told, how))
    return rows


def fraction_better(draws: list[Draws]) -> tuple[float, float, float]:
    """The pooled fraction with a 95 % interval (Wilson's) that counts dependent draws once."""
    better = np.concatenate([d.better.ravel() for d in draws])
    fraction = float(better.mean())
    errors = [d.samples[..., 0] for d in draws]
    n = sum(float(np.clip(effective_sample_size(e), 1, e.size)) for e in errors)
    interval = stats.binomtest(round(fraction * n), max(1, round(n))).proportion_ci(method="wilson")
    return fraction, float(interval.low), float(interval.high)


def draws_of_network(context: Context, seed: int) -> Draws:
    """The paper's network under a strong prior: descent, then Langevin dynamics."""
    context.progress.line(f"posterior samples: {MODELS[0]}, seed {seed}")
    n_train = 100 if context.scale == "smoke" else N_TRAIN
    data = context.data.subset(n_train=n_train, seed=seed)
    network = network_at(context.scale)
    minimum = train(
        network,
        network.init(seed),
        (data.x_train, data.y_train),
        learning_rate=0.1,
        momentum=0.9,
        batch_size=n_train,
        steps=_DESCENT[context.scale],
        prior_precision=_NETWORK_PRECISION,
        seed=seed,
        evaluate_at="final",
    ).params
    samples = langevin(
        network,
        minimum,
        (data.x_train, data.y_train),
        prior_precision=_NETWORK_PRECISION,
        momentum=0.97,
        step_size=_NETWORK_STEP,
        n_chains=1,
        seed=seed,
        **_NETWORK[context.scale],
    )
    return score_draws(network, minimum, samples, data, "categorical", _NETWORK_PRECISION)


def draws_of_logistic(context: Context, seed: int) -> Draws:
    """Logistic regression under the prior of largest evidence, from its exact minimum."""
    context.progress.line(f"posterior samples: {MODELS[1]}, seed {seed}")
    data = balanced_binary(
        0, 1, n_train=800, n_test=n_test(context.at), seed=seed, data=context.data
    )
    best = maximise_evidence(linear_problem(*check_pair(data.x_train, data.y_train))).fit
    model = logistic_regression(data.x_train.shape[1])
    minimum = ({"b": np.atleast_1d(best.intercept), "w": best.coef[:, None]},)
    samples = langevin(
        model,
        minimum,
        (data.x_train, data.y_train),
        prior_precision=best.prior_precision,
        likelihood="bernoulli",
        momentum=0.99,
        seed=seed,
        **_LOGISTIC[context.scale],
    )
    return score_draws(model, minimum, samples, data, "bernoulli", best.prior_precision)


def score_draws(
    model: Callable[[Any, Any], Any],
    minimum: Any,
    samples: PosteriorSamples,
    data: Dataset,
    likelihood: str,
    prior_precision: float,
) -> Draws:
    """Test errors and cross-entropies of the minimum, of the samples, and of their mean."""
    nll = LIKELIHOODS[likelihood]
    test = (jnp.asarray(data.x_test), jnp.asarray(data.y_test))

    def error_and_cross_entropy(params: Any) -> tuple[float, float]:
        accuracy, cross_entropy = accuracy_and_cross_entropy(model, nll, params, *test)
        return 1 - accuracy, cross_entropy

    chains, draws = jax.tree.leaves(samples.samples)[0].shape[:2]
    scores = np.array(
        [
            [
                error_and_cross_entropy(jax.tree.map(lambda leaf: leaf[c, k], samples.samples))  # noqa: B023
                for k in range(draws)
            ]
            for c in range(chains)
        ]
    )
    probabilities = samples.predict_proba(data.x_test)
    right = probabilities[np.arange(len(data.y_test)), data.y_test]
    return Draws(
        prior_precision=prior_precision,
        minimum=error_and_cross_entropy(jax.tree.map(np.float32, minimum)),
        samples=scores,
        averaged=(
            float(np.mean(probabilities.argmax(axis=1) != data.y_test)),
            float(-np.log(right).mean()),
        ),
        r_hat=float(split_r_hat(scores[..., 0])),
    )
