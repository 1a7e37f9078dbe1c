"""The noise scale of a run of transformers' Trainer: one callback.

    trainer = Trainer(..., callbacks=[NoiseScaleCallback()])

Readings are taken when PyTorch's optimiser steps; the squared norms when each backward pass ends,
before the Trainer clips. Of models to which the Trainer tells the number of items in the whole
update, the losses of micro-batches add up to the mean over all of it; of the others they are means.
(Models that are told and take means nevertheless train on their sum; |G|^2 and tr S are then of
that gradient, and their ratio, the critical batch size, is the same.)
"""

import sys
from typing import Any

try:
    import torch  # noqa: F401
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        "noisescale.transformers needs transformers: pip install 'noisescale[transformers]'.",
        name="transformers",
    ) from error

from noisescale.noise.watch.record import NoiseRecord
from noisescale.plain import to_plain
from noisescale.torch.adapter import begin, scalars, settings, summary
from noisescale.torch.watching import Watch

__all__ = ["NoiseScaleCallback"]

_FRAMES = 8  # how far above a callback the Trainer stands


class NoiseScaleCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Measures the critical batch size and the noise scale while the Trainer trains.

    Args:
        log_key_prefix: what the names of logged numbers begin with.
        options: as in :func:`noisescale.torch.watch`; ``n_train`` is the length of the training
            set unless given, and ``reduction`` is what the Trainer does with losses. Count in
            ``unit="token"`` where sequences are of unlike lengths and the loss is a mean over
            tokens.

    Logged are ``noise_scale/critical_batch_size``, ``..._low`` and ``..._high`` (its interval),
    ``..._latest`` (over the last tenth of the run so far), ``noise_scale/gradient_sq_norm``,
    ``noise_scale/trace`` and ``noise_scale/noise_scale`` (the paper's g), through the Trainer,
    whenever it logs: TensorBoard, W&B and the others show them, and ``trainer.state.log_history``
    holds them; what is not known yet is left out. When training ends, the answer is printed in a
    line. The state is part of the Trainer's checkpoints. As
    with every stateful callback, ``restore_callback_states_from_checkpoint=True`` among the
    training arguments has it restored, into a new callback, which
    ``trainer.pop_callback(NoiseScaleCallback)`` returns.

    Attributes:
        watch: what was measured; a :class:`noisescale.torch.Watch` once training has begun.

    >>> from noisescale.transformers import NoiseScaleCallback
    >>> callback = NoiseScaleCallback(every=10, unit="token")
    >>> # Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    >>> # print(callback.watch.advice())
    """

    def __init__(self, *, log_key_prefix: str = "noise_scale/", **options: Any) -> None:
        self.log_key_prefix, self.given = log_key_prefix, options
        self.options = settings(options)
        self.watch: NoiseRecord = NoiseRecord(
            n_train=self.options["n_train"],
            decay=self.options["decay"],
            unit=self.options["unit"],
        )
        self._loaded: dict[str, Any] | None = None
        self._trainer: Any = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **kwargs: Any
    ) -> None:
        """Begin to watch, or go on."""
        self._trainer = trainer = _calling_trainer()
        whole = trainer is not None and (
            trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
        )
        reduction = self.given.get("reduction", "whole" if whole else "mean")
        while hasattr(optimizer, "optimizer"):  # accelerate's wrapper
            optimizer = optimizer.optimizer
        self.watch = begin(
            model if trainer is None else trainer.model_wrapped,
            optimizer,
            self.options | {"reduction": reduction},
            dataset=getattr(kwargs.get("train_dataloader"), "dataset", None),
            hooked=True,
            state=self._loaded,
        )
        self._loaded = None
        if trainer is None:
            self.watch.note(
                "no Trainer called: nothing is logged, and losses are taken as means", warn=True
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log when the Trainer is about to."""
        if control.should_log and self._trainer is not None and self.watch.rows:
            self._trainer.log(scalars(self.watch, self.log_key_prefix))
            control.should_log = True  # which logging has turned off, before the Trainer's own

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching; what was measured stays."""
        if isinstance(self.watch, Watch):
            self.watch.close()
        line = summary(self.watch)
        if line is not None and state.is_world_process_zero:
            sys.stdout.write(f"{line}\n")  # where the Trainer's own numbers are printed
        self._trainer = None

    def state(self) -> dict[str, Any]:
        """Settings and everything measured; goes into checkpoints."""
        return {
            "args": {"log_key_prefix": self.log_key_prefix, **self.given},
            "attributes": {"measured": self.measured},
        }

    @property
    def measured(self) -> dict[str, Any]:
        """Everything measured, as JSON has it; may be set, to go on from there."""
        made: dict[str, Any] = to_plain(self.watch.state_dict())
        return made

    @measured.setter
    def measured(self, state: dict[str, Any]) -> None:
        self._loaded = state


def _calling_trainer() -> Any:
    """The Trainer that is calling; None without one.

    Callbacks are told of the model and the optimiser, not of the Trainer, through which alone
    numbers reach every logger: it is read from the caller.
    """
    from transformers import Trainer

    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if isinstance(frame.f_locals.get("self"), Trainer):
            return frame.f_locals["self"]
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
