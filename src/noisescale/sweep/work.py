"""One run, from its configuration to its record. This is what workers execute."""

from functools import lru_cache
from typing import Any

from noisescale.data import Dataset, load_kept
from noisescale.errors import InputError
from noisescale.jobs.record import guarded
from noisescale.sweep.config import RunConfig, model_identity, model_maker
from noisescale.training import DenseNetwork, train


def run_batch(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each configuration; a run that fails has ``error`` in place of results."""
    return [guarded(lambda: run(RunConfig(**config))) for config in configs]  # noqa: B023


def run(config: RunConfig) -> dict[str, Any]:
    """Train as ``config`` says: status, history and final metrics, ready for JSON."""
    if load_kept(config.data).fingerprint != config.data_fingerprint:
        raise InputError(
            f"the data set {config.data} has other content here than where the run was planned."
        )
    if config.model != "dense":
        _check_model(config.model, config.model_fingerprint)
    data = _subset(config.data, config.n_train, config.n_test, config.seed)
    n_features, n_classes = data.x_train.shape[1], data.n_classes
    if config.model == "dense":
        model: Any = DenseNetwork((n_features, *config.hidden_widths, n_classes))
    else:
        model = _build(config.model, n_features, n_classes)
    result = train(
        model,
        model.init(config.seed, config.initialisation),
        (data.x_train, data.y_train),
        learning_rate=config.learning_rate,
        batch_size=config.batch_size,
        steps=config.steps,
        momentum=config.momentum,
        prior_precision=config.prior_precision,
        cost_convention=config.cost_convention,
        sampler=config.sampler,
        seed=config.seed,
        test_data=(data.x_test, data.y_test),
        evaluate_at=config.evaluate_at,
        n_evaluations=config.n_evaluations,
    )
    final = result.final._asdict() if result.final else {}
    final.pop("step", None)
    return {
        "status": result.status,
        "error": None,
        "history": result.to_dict()["history"],
        "final": {
            "steps_done": result.steps_done,
            "diverged_at": result.diverged_at,
            "n_classes": n_classes,
            **final,
        },
    }


@lru_cache(maxsize=8)
def _check_model(name: str, planned: str) -> None:
    """Refuse a model that is not the planned one; of what cannot be told apart none is known."""
    if model_identity(name).name != planned and "#once-" not in planned:
        raise InputError(
            f"the model {name} is not here what it was where the run was planned: its code "
            "differs, or a value that it uses does; start the workers again, or give the function "
            "an attribute identity, a text."
        )


@lru_cache(maxsize=2)  # the next run is likely to use the same examples
def _subset(name: str, n_train: int, n_test: int, seed: int) -> Dataset:
    data = load_kept(name)
    everything = n_test == len(data.y_test)
    return data.subset(n_train=n_train, seed=seed, n_test=None if everything else n_test)


@lru_cache(maxsize=8)  # the same object again, so that its compiled program is found again
def _build(name: str, n_features: int, n_classes: int) -> Any:
    return model_maker(name)(n_features, n_classes)
