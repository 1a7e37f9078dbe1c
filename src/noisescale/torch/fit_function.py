"""A ready fit for PyTorch modules, for the prequential evidence."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from noisescale.checks import check_learning_rate, check_momentum, check_whole
from noisescale.torch.train_function import (
    Loss,
    check_device,
    check_function,
    check_maker,
    check_weight_decay,
    outputs_of,
    trained,
)


@dataclass(frozen=True, eq=False)
class TorchFit:
    """See :func:`fit_function`."""

    make_module: Callable[[], torch.nn.Module]
    loss: Loss
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    steps: int
    device: str

    real = False

    def __call__(
        self, x: NDArray[Any], y: NDArray[Any], *, seed: int
    ) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
        """Train a fresh module; the answer gives probabilities."""
        module = trained(
            self.make_module,
            (_tensor(x), torch.as_tensor(y)),
            self.loss,
            make_optimiser=partial(
                torch.optim.SGD,
                lr=self.learning_rate,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
            ),
            batch_size=min(self.batch_size, len(y)),
            steps=self.steps,
            seed=seed,
            device=self.device,
        )

        def predict(x: NDArray[Any]) -> NDArray[np.float64]:
            shown = self.make_module().to(self.device) if module is None else module
            logits = outputs_of(shown, _tensor(x), self.device).double()
            if module is None or not torch.isfinite(logits).all():
                # Training diverged: it has learnt nothing, and says so.
                logits = torch.zeros_like(logits)
            if logits.ndim == 1 or logits.shape[1] == 1:  # one logit, of the second of two classes
                return np.asarray(torch.sigmoid(logits.reshape(len(x))))
            return np.asarray(torch.softmax(logits, dim=1))

        return predict


def fit_function(
    make_module: Callable[[], torch.nn.Module],
    *,
    batch_size: int,
    learning_rate: float,
    steps: int,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: Loss = torch.nn.functional.cross_entropy,
    device: str | torch.device = "cpu",
) -> TorchFit:
    """A ``fit`` for :func:`noisescale.prequential_evidence`: a module trained by SGD.

    Every training makes the same number of updates, with batches of ``batch_size`` or of all
    examples there are. One that diverges predicts all classes alike.

    Args:
        make_module: makes a fresh module that returns logits; PyTorch's seed is set before.
        batch_size, learning_rate, steps, momentum, weight_decay: as in ``torch.optim.SGD``.
        loss: ``(outputs, y) -> mean loss``.
        device: where to train. With a GPU, use ``workers=1``.

    >>> import torch
    >>> make = lambda: torch.nn.Linear(64, 10)
    >>> fit = fit_function(make, batch_size=30, learning_rate=0.1, steps=500, momentum=0.9)
    """
    check_maker(make_module)
    check_function("loss", loss)
    return TorchFit(
        make_module,
        loss,
        batch_size=check_whole("batch_size", batch_size, at_least=1),
        learning_rate=check_learning_rate(learning_rate),
        momentum=check_momentum(momentum),
        weight_decay=check_weight_decay(weight_decay),
        steps=check_whole("steps", steps, at_least=1),
        device=check_device(device),
    )


def _tensor(x: NDArray[Any]) -> torch.Tensor:
    """Inputs as PyTorch's layers take them: real numbers in float32."""
    array = np.asarray(x)
    return torch.as_tensor(array.astype(np.float32) if array.dtype.kind == "f" else array)
