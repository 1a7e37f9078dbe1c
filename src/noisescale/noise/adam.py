"""Rules for Adam and AdamW when the batch changes, kappa = B'/B.

Square root (Malladi et al. 2022), from an equation in continuous time:

    epsilon' = sqrt(kappa) epsilon,  1 - beta' = kappa (1 - beta) for both,  eps' = eps/sqrt(kappa)

Both averages must run over many updates: the rule ends at kappa = 1/(1 - beta), where a beta
reaches 0, and says little long before. It is the first order of beta' = beta^kappa, which stays
above 0 and is given beyond that.

Half-life (Marek et al. 2025), found on language models: beta2' = beta2^kappa, whose half-life in
tokens stays, and nothing else moves.

Weight decay that is decoupled, as in PyTorch's AdamW (Bergsma et al. 2025): the parameters average
the updates of tau = B/(epsilon lambda D) of a run over D tokens. Kept, as B and epsilon change,

    lambda' = lambda kappa epsilon/epsilon'.

With another D or another model the best tau itself moves. An L2 penalty in the gradient, as in
PyTorch's Adam, is a part of the cost and stays.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from noisescale.checks import check_choice, check_learning_rate, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.batch_recipe import BatchRecipe, kept_warmup
from noisescale.noise.scale import SMALL_BATCH
from noisescale.notebook import Displayed

ADAM_RULES = ("square_root", "half_life")
_LOWEST = (0.5, 0.9)  # betas below which an average is none any more


@dataclass(frozen=True, kw_only=True, repr=False)
class AdamRecipe(BatchRecipe, Displayed):
    """Adam's or AdamW's hyperparameters for a training set of ``n_train`` examples.

    Attributes:
        learning_rate: epsilon.
        batch_size: B, of one update over all devices.
        n_train: N; None for a stream whose length is not known.
        betas: decay of the averages of the gradient and of its square.
        eps: what Adam adds to the root of the latter.
        weight_decay: lambda; decoupled if ``decoupled``.
        decoupled: whether this is AdamW.
        epochs, warmup_steps, unit, sequence_length: as in :class:`noisescale.Recipe`.
        notes: what to watch out for, in words; not part of equality.

    >>> import noisescale as ns
    >>> ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6).scaled_to(batch_size=1024)
    AdamRecipe(learning_rate=0.002, batch_size=1024, n_train=1000000, betas=(0.6, 0.996), eps=5e-09)
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            first, second = self.betas
        except (TypeError, ValueError):
            raise InputError(f"betas must be two numbers, got {self.betas!r}.") from None
        betas = tuple(
            check_number(f"betas[{i}]", beta, "in [0, 1)", lambda v: 0 <= v < 1)
            for i, beta in enumerate((first, second))
        )
        object.__setattr__(self, "betas", betas)
        eps = check_number("eps", self.eps, "at least 0", lambda v: v >= 0)
        object.__setattr__(self, "eps", eps)

    @property
    def largest_batch_size(self) -> int:
        """How far the square-root rule goes: B/(1 - beta) for the smaller beta, N at the most."""
        farthest = math.floor(self.batch_size / (1 - min(self.betas)) * (1 + 1e-12))
        return farthest if self.n_train is None else min(farthest, self.n_train)

    def scaled_to(
        self,
        *,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        n_train: int | None = None,
        rule: str = "square_root",
    ) -> "AdamRecipe":
        """Change the batch size, or the learning rate, and everything else by the rule.

        Args:
            batch_size: the new one.
            learning_rate: the new one; the square-root rule has a batch size for it.
            n_train: no rule for it is known. Alone it is refused; with a ``batch_size`` the rest
                goes by that, and a note says what is not known.
            rule: ``"square_root"`` or ``"half_life"``; decoupled weight decay goes by tau in both.

        >>> import noisescale as ns
        >>> adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
        >>> adam.scaled_to(learning_rate=2e-3).batch_size
        1024
        >>> adam.scaled_to(batch_size=1024, rule="half_life").betas
        (0.9, 0.996005996001)
        """
        check_choice("rule", rule, ADAM_RULES)
        if n_train is not None and batch_size is None:
            raise InputError(
                "no rule says how Adam's batch size goes with n_train: the critical batch size was "
                "seen to grow with the data (Zhang et al. 2024), so measure it "
                "(noisescale.gradient_noise), or tune around the old one; with a batch_size of "
                "your choice the rest can be said."
            )
        if (batch_size is None) == (learning_rate is None):
            raise InputError("one of batch_size and learning_rate is to change: give one.")
        notes: list[str] = []
        if batch_size is None:
            assert learning_rate is not None
            if rule == "half_life":
                raise InputError(
                    "the half-life rule keeps the learning rate, whatever the batch: give "
                    "batch_size, or rule='square_root'."
                )
            batch_size = self._batch_size_at(check_learning_rate(learning_rate), notes)
        kappa = check_whole("batch_size", batch_size, at_least=1) / self.batch_size
        beta1, beta2 = self._betas(kappa, rule, notes)
        root = math.sqrt(kappa) if rule == "square_root" else 1.0
        scaled = replace(
            self,
            n_train=self.n_train if n_train is None else n_train,
            learning_rate=self.learning_rate * root,
            batch_size=batch_size,
            betas=(beta1, beta2),
            eps=self.eps / root,
            weight_decay=self.weight_decay * (kappa / root if self.decoupled else 1),
            warmup_steps=kept_warmup(
                self.warmup_steps, (self.batch_size, batch_size), 1 / (1 - beta1)
            ),
            notes=(),
        )
        notes += self._low_betas(scaled.betas)
        if scaled.n_train is not None and batch_size > SMALL_BATCH * scaled.n_train:
            notes.append(
                f"a batch of {batch_size} is {batch_size / scaled.n_train:.0%} of the training "
                "set: no longer small"
            )
        if scaled.n_train != self.n_train:
            notes.append(
                "what else moves with the data is not known for Adam: everything here goes with "
                "the batch size alone, so search around the learning rate and the weight decay"
            )
        if scaled.weight_decay > 0 and self.decoupled and kappa != 1:
            notes.append(
                "the weight decay keeps B/(epsilon lambda D), for as many tokens D and the same "
                "model: with others the best one moves by itself"
            )
        return replace(scaled, notes=(*notes, *scaled.notes))

    def side_by_side(
        self, *, batch_size: int, n_train: int | None = None
    ) -> dict[str, "AdamRecipe"]:
        """What each rule says of a new batch size; the first says where they disagree.

        >>> import noisescale as ns
        >>> adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
        >>> [(name, r.learning_rate) for name, r in adam.side_by_side(batch_size=1024).items()]
        [('square_root', 0.002), ('half_life', 0.001)]
        """
        made = {
            rule: self.scaled_to(batch_size=batch_size, n_train=n_train, rule=rule)
            for rule in ADAM_RULES
        }
        root, life = made.values()
        if batch_size != self.batch_size:
            note = (
                f"the rules disagree: by the square root the learning rate is "
                f"{root.learning_rate / life.learning_rate:.3g} times that by the half-life, beta1 "
                f"{root.betas[0]:.3g} and {life.betas[0]:.3g} (beta2 {root.betas[1]:.4g} and "
                f"{life.betas[1]:.4g}); the first follows theory while noise dominates, the second "
                "was seen on language models: try both for a short run"
            )
            made["square_root"] = replace(root, notes=(note, *root.notes))
        return made

    def _batch_size_at(self, learning_rate: float, notes: list[str]) -> int:
        wanted = (learning_rate / self.learning_rate) ** 2 * self.batch_size
        step = 1 if self.unit == "examples" else self.sequence_length or 1
        most = math.inf if self.n_train is None else self.n_train + 0.5
        if not 0.5 * step < wanted < min(most, 2**62):
            raise InputError(
                f"a learning_rate of {learning_rate:g} would need a batch_size of {wanted:.3g}, "
                f"outside {step} to {self.n_train}: change less."
            )
        batch_size = step * round(wanted / step)
        if batch_size != wanted:
            notes.append(f"the batch size was rounded from {wanted:.5g} to {batch_size}")
        return batch_size

    def _betas(self, kappa: float, rule: str, notes: list[str]) -> tuple[float, float]:
        beta1, beta2 = self.betas
        if rule == "half_life":
            return beta1, _power(beta2, kappa)
        # A beta that differs from 0 by rounding alone is 0.
        first, second = (
            0.0 if abs(beta) < 1e-11 else beta
            for beta in (1 - kappa * (1 - old) for old in self.betas)
        )
        if min(first, second) >= 0:
            return first, second
        notes.append(
            f"a batch {kappa:.3g} times as large would need betas of {first:.3g} and {second:.3g} "
            f"by the square-root rule, which ends at batch_size {self.largest_batch_size}: beta to "
            "the power B'/B is given, of which the rule is the first order; rule='half_life' keeps "
            "beta1"
        )
        return _power(beta1, kappa), _power(beta2, kappa)

    def _low_betas(self, betas: tuple[float, float]) -> list[str]:
        notes = []
        beta1, beta2 = betas
        if beta1 < min(_LOWEST[0], self.betas[0]):
            notes.append(
                f"at beta1 = {beta1:.3g} the newest gradient weighs more than all before it: the "
                "rule assumes an average over many updates, so grow the batch less, or keep beta1 "
                "and search for the learning rate"
            )
        if beta2 < min(_LOWEST[1], self.betas[1]):
            n = round(1 / (1 - beta2))
            notes.append(
                f"beta2 = {beta2:.3g} averages over {n} update{'s' if n > 1 else ''} only: the "
                "rule assumes many"
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """The quantities and the notes; None for what is not known."""
        return {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "n_train": self.n_train,
            "betas": list(self.betas),
            "eps": self.eps,
            "decoupled": self.decoupled,
            **self._shared(),
            "steps_per_epoch": None if self.n_train is None else self.steps_per_epoch,
            "steps": None if self.epochs is None else self.steps,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        beta1, beta2 = self.betas
        decoupled = ", decoupled=True" if self.decoupled else ""
        return (
            f"AdamRecipe(learning_rate={self.learning_rate:.6g}, batch_size={self.batch_size}, "
            f"n_train={self.n_train}, betas=({beta1:.6g}, {beta2:.6g}), eps={self.eps:.6g}"
            f"{decoupled}{self._shown()})"
        )


def _power(beta: float, kappa: float) -> float:
    """beta^kappa, and the largest double below 1 where that rounds to 1."""
    return min(math.pow(beta, kappa), math.nextafter(1.0, 0.0))
