"""The Laplace evidence, corrected by importance sampling from its own Gaussian.

    Z = E_q[prior(w) L(w)/q(w)],    q = N(point, (H + L)^-1)

The mean of the ratios is unbiased whatever q is, but rests on few of them where q has thinner tails
than the posterior. How thin they are is told by the shape k of the generalised Pareto distribution
fitted to the largest ratios: below 0.7 the smoothed mean may be trusted (Vehtari et al. 2024).
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import logsumexp

from noisescale.checks import check_memory, check_whole
from noisescale.errors import InputError
from noisescale.evidence.kind import Kind
from noisescale.evidence.problem import Problem
from noisescale.evidence.result import odds_in_words
from noisescale.notebook import Displayed
from noisescale.seeds import random_stream

if TYPE_CHECKING:
    from noisescale.evidence.result import Evidence

Array = NDArray[np.float64]
TRUSTED = 0.7  # the k-hat below which a smoothed mean converges at a useful rate
_LARGEST = 10_000  # parameters, whose curvature is a dense matrix here


@dataclass(frozen=True, repr=False)
class RefinedEvidence(Displayed):
    """The evidence by importance sampling from the Laplace Gaussian, in nats.

    Attributes:
        log_evidence, log_evidence_std: with its standard error by the spread of the weights.
        laplace: the log evidence that was refined.
        k_hat: the shape of the weights' tail; above 0.7 the number is not to be trusted.
        effective_sample_size: how many of the ``n_draws`` the mean rests on.
        log_null, n_train, n_params: as in :class:`noisescale.Evidence`.
        null_model: what ``log_null`` is of, in words.
    """

    log_evidence: float
    log_evidence_std: float
    laplace: float
    k_hat: float
    effective_sample_size: float
    n_draws: int
    log_null: float | None
    n_train: int
    n_params: int
    null_model: str = "random guessing"

    kind = Kind.REFINED

    @property
    def trusted(self) -> bool:
        """Whether the Gaussian covers the posterior well enough."""
        return self.k_hat < TRUSTED

    @property
    def withheld(self) -> str | None:
        """Why it gives no odds; None if it does."""
        if self.trusted:
            return None
        return (
            f"the refined evidence is not to be trusted: k-hat is {self.k_hat:.2f}, above "
            f"{TRUSTED:g}, so the Gaussian misses parts of the posterior; use annealed_evidence."
        )

    @property
    def log_bayes_factor(self) -> float | None:
        """Log evidence minus the null model's; above 0 favours the model."""
        return None if self.log_null is None else self.log_evidence - self.log_null

    @property
    def E(self) -> float | None:  # noqa: N802, the paper's name
        """The paper's log evidence ratio in favour of the null model: minus the Bayes factor."""
        return None if self.log_bayes_factor is None else -self.log_bayes_factor

    @property
    def odds(self) -> str | None:
        """The odds against the null model, in words; None if not to be trusted."""
        if self.log_bayes_factor is None or not self.trusted:
            return None
        return odds_in_words(self.log_bayes_factor, "the model", self.null_model)

    def to_dict(self) -> dict[str, Any]:
        """Every number by name."""
        return asdict(self) | {
            "kind": self.kind.value,
            "trusted": self.trusted,
            "withheld": self.withheld,
            "log_bayes_factor": self.log_bayes_factor,
            "E": self.E,
            "odds": self.odds,
        }

    def __repr__(self) -> str:
        rows = [
            ("log evidence", self.log_evidence),
            ("its standard error", self.log_evidence_std),
            ("Laplace's log evidence", self.laplace),
            ("k-hat", self.k_hat),
            ("effective sample size", self.effective_sample_size),
            ("E (the paper's)", self.E),
        ]
        lines = [
            f"Refined evidence of {self.n_params:,} parameters from {self.n_train:,} examples "
            f"({self.n_draws:,} draws)"
        ]
        lines += [f"  {name:<36}{value:>14.6g}" for name, value in rows if value is not None]
        return "\n".join([*lines, *(f"  {told}" for told in (self.odds, self.withheld) if told)])


class LaplacePosterior:
    """The Gaussian around a point, and the model that it stands for: what refining needs.

    It goes with a result in memory alone: copies share it, pickles and dictionaries leave it out.
    """

    def __init__(self, problem: Problem, L: Array, curvature: str) -> None:
        self._problem, self._L, self._curvature = problem, L, curvature

    def __deepcopy__(self, memo: Any) -> "LaplacePosterior":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def refined(self, evidence: "Evidence", n: int, seed: int) -> RefinedEvidence:
        """``evidence`` corrected by ``n`` draws."""
        n = check_whole("n", n, at_least=100)
        log_ratios = self._log_ratios(n, random_stream(seed, "refine"))
        smoothed, k_hat = _smooth(log_ratios)
        log_mean = float(logsumexp(smoothed) - math.log(n))
        shares = np.exp(smoothed - log_mean)  # mean 1
        return RefinedEvidence(
            log_evidence=log_mean + evidence.log_degeneracy,
            log_evidence_std=float(np.std(shares, ddof=1) / math.sqrt(n)),
            laplace=evidence.log_evidence,
            k_hat=k_hat,
            effective_sample_size=float(n / np.mean(shares**2)),
            n_draws=n,
            log_null=evidence.log_null,
            n_train=evidence.n_train,
            n_params=evidence.n_params,
            null_model=evidence.null_model,
        )

    def _log_ratios(self, n: int, rng: np.random.Generator) -> Array:
        """ln of prior times likelihood over the Gaussian, at draws from it."""
        L, w = self._L, self._problem.w
        p = len(L)
        if p > _LARGEST:
            raise InputError(
                f"refine draws from a Gaussian with a dense curvature, for {_LARGEST:,} parameters "
                f"at the most, not {p:,}: use annealed_evidence, or select= the last layer."
            )
        check_memory("refine", 8.0 * 3 * p**2, "use annealed_evidence")
        H, _ = self._problem.dense(self._curvature)
        # In units of the prior: A = 1 + L^-1/2 H L^-1/2 = R' R.
        A = np.asarray(H / np.sqrt(np.outer(L, L)))
        A[np.diag_indices(p)] += 1
        try:
            R = cholesky(A, overwrite_a=True)
        except np.linalg.LinAlgError:
            raise InputError(
                "the cost curves downwards here, so there is no Gaussian to draw from: use "
                "curvature='ggn'."
            ) from None
        nll = self._problem.nll_function("float64")
        found = np.empty(n)
        for k in range(n):
            xi = rng.normal(size=p)
            drawn = w + solve_triangular(R, xi) / np.sqrt(L)
            # The constants of prior and Gaussian, (2 pi)^-p/2, cancel, and so do the L^1/2.
            log_q = -0.5 * xi @ xi + np.log(np.diag(R)).sum()
            found[k] = -nll(drawn)[0] - 0.5 * float(L @ drawn**2) - log_q
        if not np.isfinite(found).all():
            raise InputError("the likelihood is not finite at draws from the Laplace Gaussian.")
        return found


def _smooth(log_ratios: Array) -> tuple[Array, float]:
    """The log ratios with their largest ones smoothed, and k-hat."""
    try:
        from arviz_stats.base import array_stats
    except ImportError:
        raise InputError(
            "refine needs arviz-stats for k-hat: pip install 'noisescale[arviz]'."
        ) from None
    if np.ptp(log_ratios) < 1e-9 * max(1.0, abs(log_ratios[0])):
        return log_ratios, 0.0  # the posterior is the Gaussian, and there is no tail to fit
    # It wants what leave-one-out has, minus log ratios; only the largest are changed, and all may
    # be shifted.
    weights, k_hat = array_stats.psislw(-log_ratios)
    lowest = int(np.argmin(log_ratios))
    smoothed = np.asarray(weights) + (log_ratios[lowest] - weights[lowest])
    return smoothed, float(k_hat)
