"""The square-root rule for Adam (Malladi et al. 2022).

With kappa = B'/B:  epsilon' = sqrt(kappa) epsilon,  1 - beta' = kappa (1 - beta) for both betas,
and Adam's own eps' = eps/sqrt(kappa).
"""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from noisescale.checks import check_batch_size, check_learning_rate, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.scale import SMALL_BATCH


@dataclass(frozen=True, kw_only=True)
class AdamRecipe:
    """Adam's hyperparameters for a training set of ``n_train`` examples."""

    learning_rate: float
    batch_size: int
    n_train: int
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        n_train = check_whole("n_train", self.n_train, at_least=1)
        try:
            first, second = self.betas
        except (TypeError, ValueError):
            raise InputError(f"betas must be two numbers, got {self.betas!r}.") from None
        checked: dict[str, Any] = {
            "learning_rate": check_learning_rate(self.learning_rate),
            "batch_size": check_batch_size(self.batch_size, n_train),
            "n_train": n_train,
            "betas": tuple(
                check_number(f"betas[{i}]", beta, "in [0, 1)", lambda v: 0 <= v < 1)
                for i, beta in enumerate((first, second))
            ),
            "eps": check_number("eps", self.eps, "at least 0", lambda v: v >= 0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def scaled_to(
        self, *, batch_size: int | None = None, learning_rate: float | None = None
    ) -> "AdamRecipe":
        """Change the batch size, or the learning rate, and everything else by the square root."""
        if (batch_size is None) == (learning_rate is None):
            raise InputError("scaled_to changes one of batch_size and learning_rate: give one.")
        notes = []
        if learning_rate is not None:
            kappa = (check_learning_rate(learning_rate) / self.learning_rate) ** 2
            wanted = kappa * self.batch_size
            batch_size = round(wanted)
            if not 1 <= batch_size <= self.n_train:
                raise InputError(
                    f"a learning_rate of {learning_rate:g} would need a batch_size of {wanted:.3g}"
                    f", outside 1 to {self.n_train}: change less."
                )
            if batch_size != wanted:
                notes.append(f"the batch size was rounded from {wanted:.5g} to {batch_size}")
        assert batch_size is not None
        kappa = check_batch_size(batch_size, self.n_train) / self.batch_size
        first, second = self.betas
        betas = (1 - kappa * (1 - first), 1 - kappa * (1 - second))
        if min(betas) < 0:
            raise InputError(
                f"a batch {kappa:.3g} times as large would need betas of {betas[0]:.3g} and "
                f"{betas[1]:.3g}, below 0: Adam cannot follow its rule that far."
            )
        if kappa * (1 - self.betas[1]) > 0.1:
            notes.append(
                f"beta2 = {betas[1]:.3g} averages over {1 / (1 - betas[1]):.0f} updates only: the "
                "rule assumes many"
            )
        if batch_size > SMALL_BATCH * self.n_train:
            notes.append(
                f"a batch of {batch_size} is {batch_size / self.n_train:.0%} of the training set: "
                "no longer small"
            )
        return replace(
            self,
            learning_rate=self.learning_rate * math.sqrt(kappa),
            batch_size=batch_size,
            betas=betas,
            eps=self.eps / math.sqrt(kappa),
            notes=tuple(notes),
        )

    def to_dict(self) -> dict[str, Any]:
        """The quantities and the notes."""
        return asdict(self) | {"betas": list(self.betas), "notes": list(self.notes)}
