"""The same module on data of several shapes: sequences that are padded to lengths of their own."""

from typing import Any

import numpy as np

from noisescale.errors import InputError
from noisescale.evidence.problem import Array, Moments, Precision
from noisescale.evidence.select import Select
from noisescale.evidence.targets import tokens_each
from noisescale.torch.model import TorchModel
from noisescale.torch.problem import TorchProblem


class Several:
    """Problems of one module, each with examples of one shape; their sums are added up.

    Args:
        module: that all of them share.
        groups: inputs and targets of each shape.
        likelihood, select: as in :func:`noisescale.torch.log_evidence`.
    """

    def __init__(
        self, module: Any, groups: list[Any], likelihood: Any, select: Select | None
    ) -> None:
        model = TorchModel(module, select)
        self.parts = [TorchProblem(model, group, likelihood) for group in groups]
        if any(part.likelihood.estimated for part in self.parts):
            raise InputError("a noise precision needs examples of one length to be estimated.")

    @property
    def n_train(self) -> int:
        """The number of examples."""
        return sum(part.n_train for part in self.parts)

    @property
    def tokens(self) -> float | None:
        """How many tokens of a sequence count, on average."""
        return tokens_each(self.parts[0].likelihood, [part.observed for part in self.parts])

    def gradient_moments(self, precision: Precision = "float32") -> Moments:
        """Sums over per-example gradients, none of which is kept."""
        made = []
        for part in self.parts:
            made.append(part.gradient_moments(precision))
            part.forget()
        return Moments(
            np.concatenate([one.sq_norms for one in made]),
            np.sum([one.total for one in made], axis=0),
            np.sum([one.squares for one in made], axis=0),
        )

    def slopes(self, direction: Array, precision: Precision = "float32") -> Array:
        """Each example's gradient times ``direction``."""
        return np.concatenate([part.slopes(direction, precision) for part in self.parts])

    def structured(self, flat: Array) -> Any:
        """A flat vector as arrays by parameter name."""
        return self.parts[0].structured(flat)
