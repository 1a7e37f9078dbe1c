"""One run: a frozen configuration with a key that says all it depends on.

A run is a pure function of its configuration. Its key is the sha256 of the configuration as
canonical JSON (sorted keys, floats by ``repr``), with the content of its data in it, and that of a
model of the user's own.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from noisescale.checks import check_choice, check_list, check_whole, shown
from noisescale.data import facts
from noisescale.errors import InputError
from noisescale.imports import import_function
from noisescale.jobs.identity import Identity, identity
from noisescale.jobs.record import RESULT_FORMAT

# What is measured after the last step; with it steps_done, diverged_at and n_classes are kept.
METRICS = ("train_accuracy", "train_cross_entropy", "test_accuracy", "test_cross_entropy")
_MOST_LAYERS = 1_000
# What every run has in common today. In the key, so that another choice makes other runs.
_FIXED = {
    "subset": "random by seed",
    "preprocessing": "none",
    "likelihood": "categorical",
    "dtype": "float32",
    "format": RESULT_FORMAT,
}


def model_maker(name: str) -> Callable[[int, int], Any]:
    """The function ``module:function`` that makes a model."""
    if ":" not in name:
        raise InputError(f"model must be 'dense' or module:function, got {shown(name)}.")
    return import_function("model", name)


def model_identity(name: str) -> Identity:
    """What that function is, by its content: the same in every process that finds the same code."""
    return identity(model_maker(name))


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run.

    Attributes:
        learning_rate, batch_size, steps, momentum, prior_precision, cost_convention, sampler:
            as in :func:`noisescale.train`.
        seed: draws the training subset, the initialisation and the batches.
        data: ``"mnist"``, ``"mnist-embedded"``, ``"fashion-mnist"``, ``"digits"``, or
            ``"module:function"`` returning four arrays.
        n_train, n_test: examples to draw from it; None for all.
        model: ``"dense"``, or ``"module:function"`` called with the numbers of features and
            classes, returning a model (``model.init(seed, initialisation)``, ``model(params, x)``).
        hidden_widths: of a dense network; ``()`` is softmax regression.
        initialisation: the scheme by name.
        evaluate_at, n_evaluations: as in :func:`noisescale.train`.
        data_fingerprint, model_fingerprint: filled in; a worker whose data or model differ refuses
            to run. A dense network has no model fingerprint.
    """

    learning_rate: float
    batch_size: int
    steps: int
    momentum: float = 0.0
    prior_precision: float = 0.0
    seed: int = 0
    data: str = "mnist"
    n_train: int | None = None
    n_test: int | None = None
    model: str = "dense"
    hidden_widths: tuple[int, ...] = (800,)
    initialisation: str = "glorot_uniform"
    cost_convention: str = "per_example"
    sampler: str = "without_replacement"
    evaluate_at: str | tuple[int, ...] = "log"
    n_evaluations: int = 30
    data_fingerprint: str = field(default="", repr=False)
    model_fingerprint: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        # Imported late: reading a store must not wait for JAX.
        from noisescale.training import INITIALISATIONS, Settings
        from noisescale.training.evaluation import evaluation_steps

        for name in ("data", "model", "initialisation"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"{name} must be a name, got {shown(getattr(self, name))}.")
        known = facts(self.data)
        checked: dict[str, Any] = {
            name: self._size(name, limit)
            for name, limit in (("n_train", known.n_train), ("n_test", known.n_test))
        }
        settings = Settings(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            momentum=self.momentum,
            n_train=checked["n_train"],
            steps=self.steps,
            prior_precision=self.prior_precision,
            likelihood=_FIXED["likelihood"],  # type: ignore[arg-type]
            cost_convention=self.cost_convention,
            sampler=self.sampler,
            seed=self.seed,
        )
        checked |= {k: v for k, v in settings.to_dict().items() if k in FIELDS}
        check_choice("initialisation", self.initialisation, INITIALISATIONS)
        widths = check_list(
            "hidden_widths", self.hidden_widths, "a list of widths", at_most=_MOST_LAYERS
        )
        checked["hidden_widths"] = tuple(
            check_whole("a width in hidden_widths", width, at_least=1) for width in widths
        )
        checked["model_fingerprint"] = ""
        if self.model != "dense":
            model_maker(self.model)  # refused here, rather than by every run
            given = self.model_fingerprint
            checked["model_fingerprint"] = given or model_identity(self.model).name
        checked["n_evaluations"] = check_whole("n_evaluations", self.n_evaluations, at_least=1)
        at = evaluation_steps(
            self.evaluate_at, steps=settings.steps, n_evaluations=self.n_evaluations
        )
        if not isinstance(self.evaluate_at, str):
            checked["evaluate_at"] = tuple(at)
        # Given by whoever planned the run; a worker compares it with the data it has.
        checked["data_fingerprint"] = self.data_fingerprint or known.fingerprint
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _size(self, name: str, limit: int) -> int:
        value = getattr(self, name)
        size = limit if value is None else check_whole(name, value, at_least=1)
        if size > limit:
            raise InputError(f"{name} must be at most {limit}, all of {self.data}, got {size}.")
        return size

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as JSON has them; what a dense network has none of is left out."""
        values = {name: getattr(self, name) for name in FIELDS}
        if not self.model_fingerprint:
            del values["model_fingerprint"]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON that the key is the hash of."""
        return _canonical(self.to_dict())

    @cached_property
    def key(self) -> str:
        """The run's name in a store: sha256 of its canonical JSON."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def key_with(self, model_fingerprint: str) -> str:
        """Its key with another version of its model; of stores that say none if that is empty."""
        content = self.to_dict() | {"model_fingerprint": model_fingerprint}
        if not model_fingerprint:
            del content["model_fingerprint"]
        return hashlib.sha256(_canonical(content).encode()).hexdigest()

    @property
    def shape(self) -> tuple[object, ...]:
        """What runs must share to share a compiled program."""
        return self.data, self.n_train, self.n_test, self.model, self.hidden_widths, self.batch_size

    @property
    def cost(self) -> float:
        """The run's work in multiply-adds, roughly: to order runs and to tell the time left."""
        from noisescale.training.evaluation import evaluation_steps

        known = facts(self.data)
        widths = (known.n_features, *self.hidden_widths, known.n_classes)
        n_params = sum(a * b for a, b in itertools.pairwise(widths))
        n_evaluations = len(
            evaluation_steps(self.evaluate_at, steps=self.steps, n_evaluations=self.n_evaluations)
        )
        assert self.n_train is not None
        assert self.n_test is not None
        # A step goes over a layer twice, and reads and writes every parameter, which takes as long
        # as seven examples; an evaluation's products are less efficient. However small the model,
        # a step takes some ten microseconds and a run some twenty milliseconds.
        products = 2.0 * (self.batch_size + 7) * self.steps
        products += 1.5 * n_evaluations * (self.n_train + self.n_test)
        return n_params * products + 4e5 * self.steps + 1e9

    def merit(self, final: Mapping[str, Any]) -> tuple[float, str] | None:
        """The test accuracy, and how a sweep's progress tells it."""
        accuracy = final.get("test_accuracy")
        if accuracy is None:
            return None
        return accuracy, f"test accuracy {accuracy:.4f} at B = {self.batch_size}"


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content | _FIXED, sort_keys=True, separators=(",", ":"), allow_nan=False)


FIELDS = tuple(f.name for f in fields(RunConfig))
