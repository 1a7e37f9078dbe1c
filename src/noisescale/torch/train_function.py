"""A ready training function for PyTorch modules."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from noisescale.errors import InputError
from noisescale.seeds import random_stream
from noisescale.torch.batches import collect, leaves, mapped, taken
from noisescale.torch.model import arguments, logits_of
from noisescale.torch.tensors import to_numpy
from noisescale.training.sampling import BatchStream
from noisescale.tune.identity import Identity, identity_of

Tensors = tuple[Any, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Metric = Callable[[torch.Tensor, torch.Tensor], float]

_LOOK = 256  # updates between looks at whether the loss is finite, which wait for the device
_ROWS = 4_096  # validation examples at once


def accuracy(outputs: torch.Tensor, y: torch.Tensor) -> float:
    """The share of examples whose largest output is their class."""
    return float((outputs.argmax(1) == y).float().mean())


@dataclass(frozen=True, eq=False)
class TorchTrainFunction:
    """See :func:`train_function`."""

    make_module: Callable[[], torch.nn.Module]
    train_data: Tensors
    validation_data: Tensors
    loss: Loss
    metric: Metric
    weight_decay: float
    device: str
    identity: Identity = field(repr=False)

    @property
    def n_train(self) -> int:
        """The number of training examples."""
        return len(self.train_data[1])

    def __call__(
        self, *, batch_size: int, learning_rate: float, momentum: float, steps: int, seed: int
    ) -> float:
        """Train, and score on the validation data; NaN if training diverged."""
        torch.manual_seed(seed)
        module = self.make_module().to(self.device)
        optimiser = torch.optim.SGD(
            module.parameters(), lr=learning_rate, momentum=momentum, weight_decay=self.weight_decay
        )
        x, y = mapped(lambda tensor: tensor.to(self.device), self.train_data)
        rng = random_stream(seed, "batches")
        batches = BatchStream("without_replacement", n_train=len(y), batch_size=batch_size, rng=rng)
        module.train()
        for step in range(1, steps + 1):
            batch = torch.from_numpy(batches.take(1)[0].astype(np.int64)).to(self.device)
            optimiser.zero_grad()
            loss = self.loss(_outputs(module, taken(x, batch)), y[batch])
            loss.backward()
            optimiser.step()
            if (step % _LOOK == 0 or step == steps) and not torch.isfinite(loss):
                return math.nan
        return self._score(module)

    def _score(self, module: torch.nn.Module) -> float:
        module.eval()
        x, y = self.validation_data
        blocks = (slice(start, start + _ROWS) for start in range(0, len(y), _ROWS))
        with torch.no_grad():
            parts = [
                _outputs(module, mapped(lambda t: t.to(self.device), taken(x, rows))).cpu()
                for rows in blocks
            ]
        outputs = torch.cat(parts)
        return float(self.metric(outputs, y)) if torch.isfinite(outputs).all() else math.nan


def _outputs(module: torch.nn.Module, inputs: Any) -> torch.Tensor:
    args, kwargs = arguments(inputs)
    return logits_of(module(*args, **kwargs))


def train_function(
    make_module: Callable[[], torch.nn.Module],
    train_set: Any,
    validation_set: Any,
    *,
    loss: Loss = torch.nn.functional.cross_entropy,
    metric: Metric = accuracy,
    weight_decay: float = 0.0,
    device: str = "cpu",
) -> TorchTrainFunction:
    """A function to tune, for a PyTorch module trained by ``torch.optim.SGD``.

    Args:
        make_module: makes a fresh module; PyTorch's seed is set before each call.
        train_set, validation_set: ``Dataset``s of pairs, loaders, or tensors ``(x, y)``; each is
            read once and held in memory. Tuples and dicts of inputs as in
            :func:`noisescale.torch.log_evidence`.
        loss: ``(outputs, y) -> mean loss``.
        metric: ``(outputs, y) -> score``, higher is better; on the CPU.
        weight_decay: as in ``torch.optim.SGD``.
        device: where to train. With a GPU, tune with ``workers=1``.
    """
    if isinstance(make_module, torch.nn.Module) or not callable(make_module):
        raise InputError(
            "make_module must be a function that makes a fresh module, such as lambda: "
            f"torch.nn.Linear(784, 10), got {type(make_module).__name__}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = make_module()
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"make_module must return a module, got {type(made).__name__}.")
    train_data, validation_data = collect(train_set), collect(validation_set)
    arrays = [to_numpy(tensor) for tensor in leaves((train_data, validation_data))]
    # The module as it is made from one seed: its classes with their code, and its initialisation.
    name = identity_of("torch", arrays, make_module, made, loss, metric, weight_decay)
    return TorchTrainFunction(
        make_module,
        train_data,
        validation_data,
        loss,
        metric,
        weight_decay,
        device,
        identity=name,
    )
