"""The square-root rule for Adam (Malladi et al. 2022).

With kappa = B'/B:  epsilon' = sqrt(kappa) epsilon,  1 - beta' = kappa (1 - beta) for both betas,
and Adam's own eps' = eps/sqrt(kappa). The rule follows an equation in continuous time, in which
both averages run over many updates: it ends at kappa = 1/(1 - beta), where a beta reaches 0, and
says little long before.
"""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from noisescale.checks import check_batch_size, check_learning_rate, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.scale import SMALL_BATCH


@dataclass(frozen=True, kw_only=True)
class AdamRecipe:
    """Adam's hyperparameters for a training set of ``n_train`` examples.

    Attributes:
        learning_rate: epsilon.
        batch_size: B.
        n_train: N.
        betas: decay of the averages of the gradient and of its square.
        eps: what Adam adds to the root of the latter.
        notes: what to watch out for, in words; not part of equality.

    >>> import noisescale as ns
    >>> ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6).scaled_to(batch_size=1024)
    AdamRecipe(learning_rate=0.002, batch_size=1024, n_train=1000000, betas=(0.6, 0.996), eps=5e-09)
    """

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

    @property
    def steps_per_epoch(self) -> float:
        """N/B."""
        return self.n_train / self.batch_size

    @property
    def largest_batch_size(self) -> int:
        """How far the rule goes: B/(1 - beta) for the smaller beta, and N at the most."""
        farthest = math.floor(self.batch_size / (1 - min(self.betas)) * (1 + 1e-12))
        return min(farthest, self.n_train)

    def scaled_to(
        self, *, batch_size: int | None = None, learning_rate: float | None = None
    ) -> "AdamRecipe":
        """Change the batch size, or the learning rate, and everything else by the square root.

        >>> import noisescale as ns
        >>> adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
        >>> adam.scaled_to(learning_rate=2e-3).batch_size
        1024
        """
        if (batch_size is None) == (learning_rate is None):
            raise InputError("scaled_to changes one of batch_size and learning_rate: give one.")
        notes = []
        if learning_rate is not None:
            wanted = (check_learning_rate(learning_rate) / self.learning_rate) ** 2
            wanted *= self.batch_size
            if not 0.5 < wanted < self.n_train + 0.5:
                raise InputError(
                    f"a learning_rate of {learning_rate:g} would need a batch_size of {wanted:.3g}"
                    f", outside 1 to {self.n_train}: change less."
                )
            batch_size = round(wanted)
            if batch_size != wanted:
                notes.append(f"the batch size was rounded from {wanted:.5g} to {batch_size}")
        assert batch_size is not None
        kappa = check_batch_size(batch_size, self.n_train) / self.batch_size
        # A beta that rounding alone puts below 0 is 0.
        beta1, beta2 = betas = tuple(
            0.0 if -1e-11 < beta < 0 else beta
            for beta in (1 - kappa * (1 - old) for old in self.betas)
        )
        if min(betas) < 0:
            raise InputError(
                f"a batch {kappa:.3g} times as large would need betas of {beta1:.3g} and "
                f"{beta2:.3g}, below 0: Adam's rule ends at batch_size {self.largest_batch_size}, "
                f"so grow the batch less, or tune anew with betas nearer 1."
            )
        if beta1 < min(0.5, self.betas[0]):
            notes.append(
                f"at beta1 = {beta1:.3g} the newest gradient weighs more than all before it: the "
                "rule assumes an average over many updates, so grow the batch less, or keep beta1 "
                "and search for the learning rate"
            )
        if beta2 < min(0.9, self.betas[1]):
            notes.append(
                f"beta2 = {beta2:.3g} averages over {1 / (1 - beta2):.0f} updates only: the rule "
                "assumes many"
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
            betas=(beta1, beta2),
            eps=self.eps / math.sqrt(kappa),
            notes=tuple(notes),
        )

    def to_dict(self) -> dict[str, Any]:
        """The quantities and the notes."""
        return asdict(self) | {"betas": list(self.betas), "notes": list(self.notes)}

    def __repr__(self) -> str:
        beta1, beta2 = self.betas
        return (
            f"AdamRecipe(learning_rate={self.learning_rate:.6g}, batch_size={self.batch_size}, "
            f"n_train={self.n_train}, betas=({beta1:.6g}, {beta2:.6g}), eps={self.eps:.6g})"
        )
