"""The noise scale of a Lightning run: one callback.

    trainer = Trainer(callbacks=[NoiseScaleCallback()])

Readings are taken in ``on_before_optimizer_step``: after the backward passes of an update, before
its gradients are clipped. (Lightning runs the backward pass inside the optimiser's step, so that
the optimiser's own hooks come too early.) The squared norms themselves are taken when each backward
pass ends, with the scale that the precision plugin's ``GradScaler`` then had.
"""

from typing import Any

try:
    import torch  # noqa: F401
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.utilities import rank_zero_info
except ImportError as error:
    raise ImportError(
        "noisescale.lightning needs Lightning: pip install 'noisescale[lightning]'.",
        name="lightning",
    ) from error

from noisescale.noise.watch.record import NoiseRecord
from noisescale.torch.adapter import begin, scalars, settings, summary
from noisescale.torch.watching import Watch

__all__ = ["NoiseScaleCallback"]


class NoiseScaleCallback(Callback):  # type: ignore[misc]
    """Measures the critical batch size and the noise scale while Lightning trains.

    Args:
        log_key_prefix: what the names of logged numbers begin with.
        options: as in :func:`noisescale.torch.watch`; ``n_train`` is the length of the training
            loader's data set unless given.

    Logged are ``noise_scale/critical_batch_size``, ``..._low`` and ``..._high`` (its interval),
    ``..._latest`` (over the last tenth of the run so far), ``noise_scale/gradient_sq_norm``,
    ``noise_scale/trace`` and ``noise_scale/noise_scale`` (the paper's g), through the module's
    ``log_dict``, at the pace of the trainer; what is not known yet is left out. When training ends,
    Lightning's logger says the answer in a line. The state goes into Lightning's checkpoints, and a
    run that goes on from one goes on measuring. With several optimisers nothing is measured, and a
    note says so.

    Attributes:
        watch: what was measured; a :class:`noisescale.torch.Watch` once training has begun.

    >>> import torch, lightning
    >>> from noisescale.lightning import NoiseScaleCallback
    >>> callback = NoiseScaleCallback(every=10)
    >>> trainer = lightning.Trainer(callbacks=[callback], logger=False, max_epochs=1,
    ...     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    >>> # trainer.fit(module, loader); print(callback.watch.advice())
    """

    def __init__(self, *, log_key_prefix: str = "noise_scale/", **options: Any) -> None:
        self.log_key_prefix = log_key_prefix
        self.options = settings(options)
        self.watch: NoiseRecord = NoiseRecord(
            n_train=self.options["n_train"],
            decay=self.options["decay"],
            unit=self.options["unit"],
        )
        self._loaded: dict[str, Any] | None = None
        self._n_logged, self._n_passes = 0, 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch, or go on."""
        if len(trainer.optimizers) != 1:
            self.watch.note(
                f"there are {len(trainer.optimizers)} optimisers, and which batch is whose cannot "
                "be told: nothing is measured",
                warn=True,
            )
            return
        model = trainer.strategy.model or pl_module
        self.watch = begin(
            model,
            trainer.optimizers[0],
            self.options,
            dataset=getattr(trainer.train_dataloader, "dataset", None),
            hooked=False,
            state=self._loaded,
        )
        self._loaded, self._n_passes, self._n_logged = None, 0, len(self.watch.rows)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Count the micro-batches of an update."""
        self._n_passes += 1

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Take the reading of an update."""
        if isinstance(self.watch, Watch):
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            if pl_module.automatic_optimization:
                # The last update of an epoch may have fewer, and each is divided as ever.
                scale *= self._n_passes / trainer.accumulate_grad_batches
            self.watch.step(loss_scale=scale)
        self._n_passes = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log what is new."""
        if len(self.watch.rows) > self._n_logged:
            self._n_logged = len(self.watch.rows)
            pl_module.log_dict(
                scalars(self.watch, self.log_key_prefix), on_step=True, on_epoch=False, batch_size=1
            )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching; what was measured stays."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching; what was measured stays."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """Everything measured; goes into checkpoints."""
        return self.watch.state_dict() if self._loaded is None else self._loaded

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there when training starts."""
        self._loaded = state_dict

    def _close(self) -> None:
        if isinstance(self.watch, Watch) and not self.watch.closed:
            self.watch.close()
            line = summary(self.watch)
            if line is not None:
                rank_zero_info(line)
