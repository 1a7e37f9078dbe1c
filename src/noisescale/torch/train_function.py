"""A ready training function for PyTorch modules."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from noisescale.checks import check_choice, check_number, check_whole, shown
from noisescale.errors import InputError
from noisescale.jobs.identity import Identity, identity_of
from noisescale.seeds import random_stream
from noisescale.torch.batches import collect, count, leaves, mapped, taken
from noisescale.torch.model import arguments, logits_of
from noisescale.torch.tensors import to_numpy
from noisescale.training.sampling import BatchStream

Tensors = tuple[Any, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Metric = Callable[[torch.Tensor, torch.Tensor], float]

_LOOK = 256  # updates between looks at whether the loss is finite, which wait for the device
_ROWS = 4_096  # validation examples at once


def accuracy(outputs: torch.Tensor, y: torch.Tensor) -> float:
    """The share of examples whose largest output is their class."""
    return float((outputs.argmax(1) == y).float().mean())


def check_device(device: str | torch.device) -> str:
    """Where to train, if PyTorch knows it; whether a machine has it shows when one trains there."""
    try:
        found = torch.device(device) if isinstance(device, str | torch.device) else None
    except RuntimeError:
        found = None
    if found is None or found.type == "meta":  # which computes nothing
        raise InputError(
            f"device must be one that PyTorch computes on, such as 'cpu' or 'cuda', got "
            f"{shown(device)}."
        )
    return str(found)


def check_maker(make_module: Callable[[], torch.nn.Module]) -> None:
    """Refuses a module in place of the function that makes it."""
    if isinstance(make_module, torch.nn.Module) or not callable(make_module):
        raise InputError(
            "make_module must be a function that makes a fresh module, such as lambda: "
            f"torch.nn.Linear(784, 10), got {type(make_module).__name__}."
        )


def check_weight_decay(value: float) -> float:
    """Of ``torch.optim.SGD``."""
    return check_number("weight_decay", value, "at least 0", lambda v: v >= 0)


def check_function(name: str, given: Any) -> None:
    """Refuses what cannot be called."""
    if not callable(given):
        raise InputError(f"{name} must be a function, got {type(given).__name__}.")


def trained(
    make_module: Callable[[], torch.nn.Module],
    data: Tensors,
    loss: Loss,
    *,
    make_optimiser: Callable[..., torch.optim.Optimizer],
    batch_size: int,
    steps: int,
    seed: int,
    device: str,
) -> torch.nn.Module | None:
    """A fresh module after so many updates; None if training diverged in any of them."""
    check_whole("steps", steps, at_least=1)
    torch.manual_seed(seed)
    module = make_module().to(device)
    optimiser = make_optimiser(module.parameters())
    x, y = mapped(lambda tensor: tensor.to(device), data)
    rng = random_stream(seed, "batches")
    batches = BatchStream("without_replacement", n_train=len(y), batch_size=batch_size, rng=rng)
    module.train()
    fine = torch.ones((), dtype=torch.bool, device=device)
    for step in range(1, steps + 1):
        batch = torch.from_numpy(batches.take(1)[0].astype(np.int64)).to(device)
        optimiser.zero_grad()
        value = loss(_outputs(module, taken(x, batch)), y[batch])
        value.backward()
        optimiser.step()
        fine = fine & torch.isfinite(value.detach()).all()
        if step % _LOOK == 0 and not fine:
            return None
    # The last update may be the one that diverges, which no loss has seen.
    left = (*module.parameters(), *module.buffers())
    finite = [torch.isfinite(t).all().to(device) for t in left if t.is_floating_point()]
    return module if torch.stack([fine, *finite]).all() else None


def outputs_of(module: torch.nn.Module, x: Any, device: str) -> torch.Tensor:
    """The outputs for all of ``x``, on the CPU, in evaluation mode."""
    module.eval()
    blocks = (slice(start, start + _ROWS) for start in range(0, count(x), _ROWS))
    with torch.no_grad():
        parts = [
            _outputs(module, mapped(lambda t: t.to(device), taken(x, rows))).cpu()
            for rows in blocks
        ]
    return torch.cat(parts)


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
        make_optimiser = partial(
            torch.optim.SGD, lr=learning_rate, momentum=momentum, weight_decay=self.weight_decay
        )
        return self._trained(make_optimiser, batch_size, steps, seed)

    def _trained(
        self,
        make_optimiser: Callable[..., torch.optim.Optimizer],
        batch_size: int,
        steps: int,
        seed: int,
    ) -> float:
        module = trained(
            self.make_module,
            self.train_data,
            self.loss,
            make_optimiser=make_optimiser,
            batch_size=batch_size,
            steps=steps,
            seed=seed,
            device=self.device,
        )
        return math.nan if module is None else self._score(module)

    def _score(self, module: torch.nn.Module) -> float:
        x, y = self.validation_data
        outputs = outputs_of(module, x, self.device)
        return float(self.metric(outputs, y)) if torch.isfinite(outputs).all() else math.nan


class TorchAdamWTrainFunction(TorchTrainFunction):
    """The same by ``torch.optim.AdamW``, whose betas and weight decay the tuner gives."""

    def __call__(  # type: ignore[override]  # what it takes says what it trains by
        self,
        *,
        batch_size: int,
        learning_rate: float,
        betas: tuple[float, float],
        weight_decay: float,
        steps: int,
        seed: int,
    ) -> float:
        """Train, and score on the validation data; NaN if training diverged."""
        make_optimiser = partial(
            torch.optim.AdamW, lr=learning_rate, betas=betas, weight_decay=weight_decay
        )
        return self._trained(make_optimiser, batch_size, steps, seed)


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
    optimizer: str = "sgd",
    weight_decay: float = 0.0,
    device: str | torch.device = "cpu",
) -> TorchTrainFunction:
    """A function to tune, for a PyTorch module trained by ``torch.optim.SGD`` or ``AdamW``.

    Args:
        make_module: makes a fresh module; PyTorch's seed is set before each call.
        train_set, validation_set: ``Dataset``s of pairs, loaders, or tensors ``(x, y)``; each is
            read once and held in memory. Tuples and dicts of inputs as in
            :func:`noisescale.torch.log_evidence`.
        loss: ``(outputs, y) -> mean loss``.
        metric: ``(outputs, y) -> score``, higher is better; on the CPU.
        optimizer: ``"sgd"`` or ``"adamw"``; the latter is tuned by Adam's rules.
        weight_decay: as in ``torch.optim.SGD``; that of AdamW is the tuner's to give.
        device: where to train. With a GPU, tune with ``accelerator=True``.
    """
    check_choice("optimizer", optimizer, ("sgd", "adamw"))
    weight_decay, device = check_weight_decay(weight_decay), check_device(device)
    if optimizer == "adamw" and weight_decay:
        raise InputError("AdamW's weight decay is tuned: give it to tune_large_batch instead.")
    check_maker(make_module)
    check_function("loss", loss)
    check_function("metric", metric)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = make_module()
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"make_module must return a module, got {type(made).__name__}.")
    train_data, validation_data = collect(train_set), collect(validation_set)
    arrays = [to_numpy(tensor) for tensor in leaves((train_data, validation_data))]
    # The module as it is made from one seed: its classes with their code, and its initialisation.
    parts = [arrays, make_module, made, loss, metric, weight_decay]
    name = identity_of("torch" if optimizer == "sgd" else f"torch {optimizer}", *parts)
    kind = TorchTrainFunction if optimizer == "sgd" else TorchAdamWTrainFunction
    return kind(
        make_module,
        train_data,
        validation_data,
        loss,
        metric,
        weight_decay,
        device,
        identity=name,
    )
