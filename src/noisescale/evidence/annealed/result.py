"""What annealed importance sampling gives back."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from noisescale.evidence.kind import Kind
from noisescale.evidence.result import odds_in_words
from noisescale.notebook import Displayed

Array = NDArray[np.float64]
_FEW = 3.0  # effective chains below which the standard error means little
_CERTAIN = math.log(20)  # by which a lower bound may exceed the truth with a probability of 5 %
_REFUSED = 0.4  # mean acceptance below which chains hardly move


@dataclass(frozen=True, eq=False, repr=False)
class AnnealedEvidence(Displayed):
    """The sampled evidence of a model: a stochastic lower bound, in nats.

    Attributes:
        log_weights: (chains,), each exp of which has the evidence as its mean.
        log_null: the null model's log evidence; None for a likelihood of one's own.
        betas: inverse temperatures, from 0 (the prior) to 1 (the posterior).
        step_sizes, acceptance: at each temperature, frozen after the pilot, and how often
            proposals were accepted on average.
        n_leapfrog: gradients for each chain and temperature.
        n_train, n_params, prior_precision, seed: of what was sampled.
        null_model: what ``log_null`` is of, in words.
        null_note: that it is beaten too easily, where classes are imbalanced.
    """

    log_weights: Array
    log_null: float | None
    betas: Array
    step_sizes: Array
    acceptance: Array
    n_leapfrog: int
    n_train: int
    n_params: int
    prior_precision: float | dict[str, float] | None
    seed: int
    null_model: str = "random guessing"
    null_note: str | None = None

    kind = Kind.ANNEALED

    @property
    def log_evidence(self) -> float:
        """The log of the mean weight; above the truth by t with a probability of at most e^-t."""
        return float(logsumexp(self.log_weights) - math.log(self.n_chains))

    @property
    def log_evidence_std(self) -> float:
        """Its standard error by the spread of the weights; too small where few of them count."""
        if self.n_chains < 2:
            return math.nan
        shares = np.exp(self.log_weights - self.log_evidence)  # mean 1
        return float(np.std(shares, ddof=1) / math.sqrt(self.n_chains))

    @property
    def effective_sample_size(self) -> float:
        """How many chains the mean weight rests on: (sum w)^2 / sum w^2."""
        total, squares = logsumexp(self.log_weights), logsumexp(2 * self.log_weights)
        return float(np.exp(2 * total - squares))

    @property
    def log_bayes_factor(self) -> float | None:
        """Log evidence minus the null model's; above 0 favours the model."""
        return None if self.log_null is None else self.log_evidence - self.log_null

    @property
    def E(self) -> float | None:  # noqa: N802, the paper's name
        """The paper's log evidence ratio in favour of the null model: a stochastic upper bound."""
        return None if self.log_bayes_factor is None else -self.log_bayes_factor

    @property
    def odds(self) -> str | None:
        """Odds that the truth exceeds with a probability of 95 %; None if that beats no null."""
        if self.log_bayes_factor is None or self.log_bayes_factor <= _CERTAIN:
            return None
        sure = self.log_bayes_factor - _CERTAIN
        return f"{odds_in_words(sure, 'the model', self.null_model)} or more (95 %)"

    @property
    def verdict(self) -> str:
        """What this number says of the model, in words."""
        if self.log_bayes_factor is None:
            return "no null model to compare with"
        return self.odds or "the null model is not beaten: the sampled evidence is a lower bound"

    @property
    def n_chains(self) -> int:
        """How many chains were run."""
        return len(self.log_weights)

    @property
    def n_temperatures(self) -> int:
        """How many temperatures each went through."""
        return len(self.step_sizes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about this number."""
        notes = [] if self.null_note is None else [self.null_note]
        if self.effective_sample_size < min(_FEW, 0.9 * self.n_chains):
            notes.append(
                f"{self.effective_sample_size:.2g} of {self.n_chains} chains carry the weight: the "
                "standard error is too small, and more temperatures would raise the bound."
            )
        if self.acceptance.mean() < _REFUSED:
            notes.append(
                f"only {self.acceptance.mean():.0%} of proposals were accepted: the pilot's step "
                "sizes were too long, use another seed or more temperatures."
            )
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Every number by name."""
        return {
            "kind": self.kind.value,
            "log_evidence": self.log_evidence,
            "log_evidence_std": None if self.n_chains < 2 else self.log_evidence_std,
            "log_null": self.log_null,
            "null_model": self.null_model,
            "log_bayes_factor": self.log_bayes_factor,
            "E": self.E,
            "odds": self.odds,
            "verdict": self.verdict,
            "effective_sample_size": self.effective_sample_size,
            "log_weights": self.log_weights.tolist(),
            "betas": self.betas.tolist(),
            "step_sizes": self.step_sizes.tolist(),
            "acceptance": self.acceptance.tolist(),
            "n_leapfrog": self.n_leapfrog,
            "n_train": self.n_train,
            "n_params": self.n_params,
            "prior_precision": self.prior_precision,
            "seed": self.seed,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        rows = [
            ("log evidence, a lower bound", self.log_evidence),
            ("its standard error", self.log_evidence_std),
            ("null model's log evidence", self.log_null),
            ("log Bayes factor", self.log_bayes_factor),
            ("E (the paper's), an upper bound", self.E),
            ("effective sample size", self.effective_sample_size),
            ("mean acceptance", float(self.acceptance.mean())),
        ]
        lines = [
            f"Annealed evidence of {self.n_params:,} parameters from {self.n_train:,} examples "
            f"({self.n_chains} chains, {self.n_temperatures} temperatures)"
        ]
        lines += [f"  {name:<36}{value:>14.6g}" for name, value in rows if value is not None]
        return "\n".join([*lines, f"  {self.verdict}", *(f"  note: {n}" for n in self.notes)])
