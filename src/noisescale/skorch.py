"""The noise scale of a skorch net: one callback.

    net = NeuralNetClassifier(Module, callbacks=[NoiseScaleCallback()])

skorch runs the backward pass inside the optimiser's step and says so by ``on_grad_computed``; nets
that accumulate gradients step the optimiser themselves, and then its own step takes the reading.
Which of both a net does is seen at its first update.
"""

from typing import Any

try:
    import torch  # noqa: F401
    from skorch.callbacks import Callback
except ImportError as error:
    raise ImportError(
        "noisescale.skorch needs skorch: pip install 'noisescale[skorch]'.", name="skorch"
    ) from error

from noisescale.noise.watch.record import NoiseRecord
from noisescale.torch.adapter import begin, scalars, settings
from noisescale.torch.watching import Watch

__all__ = ["NoiseScaleCallback"]


class NoiseScaleCallback(Callback):  # type: ignore[misc]
    """Measures the critical batch size and the noise scale while a skorch net trains.

    Args:
        options: as in :func:`noisescale.torch.watch`; ``n_train`` is the length of the training
            set unless given.

    Every epoch's row of ``net.history`` gets ``critical_batch_size``, ``critical_batch_size_low``
    and ``..._high`` (its interval), ``..._latest`` (over the last tenth of the run so far),
    ``gradient_sq_norm``, ``trace`` and ``noise_scale`` (the paper's g), as far as they are known.
    ``net.partial_fit`` goes on measuring; a pickled net keeps what was measured.

    Attributes:
        watch_: what was measured; a :class:`noisescale.torch.Watch` while and after training.

    >>> from noisescale.skorch import NoiseScaleCallback
    >>> NoiseScaleCallback(every=10).get_params()["every"]
    10
    """

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(settings(options))  # by name, as get_params and clone want them

    def initialize(self) -> "NoiseScaleCallback":
        """Forget what was measured."""
        self.__dict__.pop("watch_", None)
        return self

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Begin to watch when the first epoch has its data."""
        self._before_: NoiseRecord | None = getattr(self, "watch_", None)
        self._stop()  # what an exception has left
        self._began_ = False

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, **kwargs: Any) -> None:
        """Begin to watch, or go on."""
        if self._began_:
            return
        self._began_ = True
        self._inside_: bool | None = None  # the optimiser's step
        optimizer = net.optimizer_
        chosen = {name: vars(self)[name] for name in settings({})}
        state = None
        if self._before_ is not None and self._before_.rows:  # of a watch, or of its pickle
            n_updates = self._before_.rows[-1].update + 1
            state = {"n_updates": n_updates} | self._before_.state_dict()
        self.watch_: NoiseRecord = begin(
            net.module_, optimizer, chosen, dataset=dataset_train, hooked=False, state=state
        )
        self._hook_ = optimizer.register_step_pre_hook(lambda *_: self._on_step())

    def on_grad_computed(self, net: Any, named_parameters: Any, **kwargs: Any) -> None:
        """Take the reading of an update whose backward pass is inside the optimiser's step."""
        if isinstance(self.watch_, Watch) and self._inside_ is not False:
            self._inside_ = True
            self.watch_.step()

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Write the answer into the history."""
        for name, value in scalars(self.watch_, "").items():
            net.history.record(name, value)

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Stop watching; what was measured stays."""
        self._stop()

    def _stop(self) -> None:
        watch = getattr(self, "watch_", None)
        if isinstance(watch, Watch):
            watch.close()
            self._hook_.remove()

    def _on_step(self) -> None:
        """The optimiser begins its step, with the gradients already there or not."""
        if isinstance(self.watch_, Watch):
            if self._inside_ is None:
                self._inside_ = not self.watch_.pending
            if not self._inside_:
                self.watch_.step()

    def __getstate__(self) -> dict[str, Any]:
        """Without hooks and model: what was measured, as plain numbers."""
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        if isinstance(getattr(self, "watch_", None), NoiseRecord):
            kept["watch_"] = self.watch_.state_dict()
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "watch_" in state:
            record = NoiseRecord(
                n_train=state["watch_"]["n_train"], decay=self.decay, unit=self.unit
            )
            record.load_state_dict(state["watch_"])
            self.watch_ = record
