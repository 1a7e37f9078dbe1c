"""The hyperparameters of a run, checked, and the rates that the update rule takes."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from noisescale.checks import (
    check_batch_size,
    check_choice,
    check_learning_rate,
    check_momentum,
    check_number,
    check_whole,
)
from noisescale.likelihood import LIKELIHOODS
from noisescale.training.sampling import SAMPLERS

# What one unit of learning rate means. Under "per_class" the whole training cost, penalty
# included, is divided by the number of classes too: the unit that reproduces the paper's figures.
COST_CONVENTIONS = ("per_example", "per_class")


class Rates(NamedTuple):
    """The numbers in A <- m A + grad + decay w, w <- w - learning_rate A."""

    learning_rate: float
    momentum: float
    decay: float


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of a run, as the user gave them."""

    learning_rate: float
    batch_size: int
    momentum: float
    n_train: int
    steps: int
    prior_precision: float
    likelihood: str
    cost_convention: str
    sampler: str
    seed: int

    def __post_init__(self) -> None:
        checked = {
            "learning_rate": check_learning_rate(self.learning_rate),
            "batch_size": check_batch_size(self.batch_size, self.n_train),
            "momentum": check_momentum(self.momentum),
            "steps": check_whole("steps", self.steps, at_least=0),
            "prior_precision": check_number(
                "prior_precision", self.prior_precision, "in [0, 1e38]", lambda v: 0 <= v <= 1e38
            ),
            "likelihood": check_choice("likelihood", self.likelihood, LIKELIHOODS),
            "cost_convention": check_choice(
                "cost_convention", self.cost_convention, COST_CONVENTIONS
            ),
            "sampler": check_choice("sampler", self.sampler, SAMPLERS),
            "seed": check_whole("seed", self.seed, at_least=0),
        }
        for name, value in checked.items():  # plain numbers, whatever number types came in
            object.__setattr__(self, name, value)

    def rates(self, n_classes: int) -> Rates:
        """The update rule's numbers, for a model of so many classes."""
        unit = n_classes if self.cost_convention == "per_class" else 1
        return Rates(
            learning_rate=self.learning_rate / unit,
            momentum=self.momentum,
            decay=self.prior_precision / self.n_train,
        )

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)
