"""Claims C12 and C35: what a change of parameters does to the evidence and to its approximation."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from noisescale.data import balanced_binary
from noisescale.evidence import log_evidence
from noisescale.evidence.linear.regression import check_pair, fit_map, linear_problem
from noisescale.paper.claims import Judgement, judge_each
from noisescale.paper.logistic import PREPROCESSINGS, whiten
from noisescale.paper.section import Context
from noisescale.seeds import random_stream


@dataclass(frozen=True)
class Changes:
    """What a change of parameters did, in nats or relative to what was."""

    rescaled: dict[str, float]  # E, relative, by preprocessing: C12
    evidence: float  # the evidence by quadrature: C35
    laplace: float  # its Laplace approximation: C35


def measure_invariance(context: Context) -> Changes:
    """Both changes; neither depends on a scale or a number of seeds."""
    rescaled = {preprocessing: _rescale(context, preprocessing) for preprocessing in PREPROCESSINGS}
    return Changes(rescaled, *_reparameterise())


def judge_invariance(changes: Changes) -> list[Judgement]:
    """C12 under each preprocessing, and C35."""
    return [
        *(
            judge_each(
                "C12",
                [change < 1e-8],
                decidable=True,
                measured={"relative change of E": f"{change:.1e}"},
                convention=preprocessing,
                primary=preprocessing == PREPROCESSINGS[0],
            )
            for preprocessing, change in changes.rescaled.items()
        ),
        judge_each(
            "C35",
            [changes.evidence < 1e-8 and changes.laplace > 1e-3],
            decidable=True,
            measured={
                "change of the evidence": f"{changes.evidence:.1e}",
                "change of its Laplace approximation": f"{changes.laplace:.2e}",
            },
        ),
    ]


def _rescale(context: Context, preprocessing: str) -> float:
    """Features divided and weights multiplied by random factors, the prior with them."""
    data = balanced_binary(0, 1, n_train=200, n_test=2, seed=0, data=context.data)
    x, y = check_pair(data.x_train, data.y_train)
    if preprocessing == "whitened":
        (x,) = whiten(x)
    fit = fit_map(linear_problem(x, y, fit_intercept=False), prior_precision=0.1)
    factors = np.exp(random_stream(0, "rescaling").normal(0, 2, x.shape[1]))

    def evidence_ratio(x: np.ndarray, w: np.ndarray, prior: np.ndarray) -> float:
        found = log_evidence(
            lambda w, x: x @ w,
            w,
            (x, y),
            prior_precision=prior,
            likelihood="bernoulli",
            method="dense",
            at="point",
        )
        return -(found.log_bayes_factor or 0.0)

    before = evidence_ratio(x, fit.coef, np.full(x.shape[1], 0.1))
    after = evidence_ratio(x / factors, fit.coef * factors, 0.1 / factors**2)
    return abs(after - before) / abs(before)


def _reparameterise() -> tuple[float, float]:
    """A one-parameter logistic model in w and in u with w = sinh u."""
    rng = random_stream(0, "reparameterisation")
    x = rng.normal(size=20)
    y = np.where(rng.random(20) < 1 / (1 + np.exp(-1.5 * x)), 1.0, -1.0)

    def log_joint(w: float) -> float:  # ln P(y | w) P(w), prior precision 1
        return float(-np.logaddexp(0, -y * x * w).sum() - 0.5 * w**2 - 0.5 * math.log(2 * math.pi))

    def in_u(u: float) -> float:  # the density in u has the Jacobian dw/du
        return log_joint(math.sinh(u)) + math.log(math.cosh(u))

    exact, exact_u = _log_integral(log_joint, 12.0), _log_integral(in_u, 4.0)
    laplace, laplace_u = _laplace(log_joint), _laplace(in_u)
    return abs(exact - exact_u), abs(laplace - laplace_u)


def _log_integral(log_density: Callable[[float], float], reach: float) -> float:
    peak = -minimize_scalar(lambda w: -log_density(w), bounds=(-reach, reach), method="bounded").fun
    area, _ = quad(
        lambda w: math.exp(log_density(w) - peak),
        -reach,
        reach,
        epsabs=1e-13,
        epsrel=1e-12,
        limit=500,
    )
    return float(peak + math.log(area))


def _laplace(log_density: Callable[[float], float]) -> float:
    found = minimize_scalar(
        lambda w: -log_density(w), bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}
    )
    h, w = 1e-3, float(found.x)
    curvature = -(log_density(w + h) + log_density(w - h) - 2 * log_density(w)) / h**2
    return float(-found.fun + 0.5 * math.log(2 * math.pi / curvature))
