"""The numbers of a smoke-scale report, by section, setting and quantity, never by file.

    smoke_numbers(folder)    {"2 | raw pixels, random labels, prior precision 0.1 | E": -12.3, ...}

What is read here may move and change its form; the names stay, so that ``smoke.json`` stays
comparable. Numbers that rounding decides are left out, by name, in CHAOTIC.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from noisescale.jobs.store import RunStore

Named = Iterator[tuple[str, str, Any]]  # setting, quantity, value

# Starts of names -> why another processor, which rounds otherwise, gives another number.
_N1000 = "training | network, N = 1000"
CHAOTIC = {
    f"{_N1000}, B = 3, ": "training breaks down",
    f"{_N1000}, B = 8, learning rate 1 per_class, momentum 0.8": "training nearly breaks down",
    f"{_N1000}, B = 30, learning rate 1 per_example": "training breaks down",
    "training | network, N = 500, B = 14, learning rate 1 per_class": "fusions of XLA move it",
    f"{_N1000}, B = 30, learning rate 1 per_class, momentum 0.9, prior precision 1": "oscillates",
    "11 | at the MAP": "the descent ends in one of several minima",
    "11 | sampled": "one draw a chain: its error is its size",
}
# By section: what rounding on another processor may do, relative to the number.
TOLERANCES = {"1": 1e-5, "2": 1e-5, "9": 1e-4, "10": 1e-2, "A": 1e-4, "C": 1e-4, "D": 1e-4}
_TOLERANCE = 2e-3


def tolerance(name: str) -> float:
    """The relative difference that is none."""
    return TOLERANCES.get(name.split(" | ")[0], _TOLERANCE)


def smoke_numbers(folder: Path) -> dict[str, float]:
    """Every number that is compared, from the folder of a smoke-scale report of all sections."""
    named = {}
    for setting, quantity, value in _training_runs(folder):
        named[f"training | {setting} | {quantity}"] = value
    for section, numbers in _SECTIONS.items():
        for setting, quantity, value in numbers(_data(folder, section)):
            named[f"{section} | {setting} | {quantity}"] = value
    return {
        name: float(f"{value:.9g}")
        for name, value in sorted(named.items())
        if not name.startswith(tuple(CHAOTIC))
    }


def _data(folder: Path, section: str) -> Any:
    (path,) = (folder / "measured").glob(f"section-{section}-smoke-*.json")
    return json.loads(path.read_text(encoding="utf-8"))["data"]


def _training_runs(folder: Path) -> Named:
    """The runs of figures 3 to 8, the unit and the law; the tuner's trials are section E's."""
    with RunStore(folder) as store:
        runs = store.frame()
    for run in runs[runs["test_cross_entropy"].notna()].to_dict("records"):
        network = "network" if run["hidden_widths"] else "softmax regression"
        setting = (
            f"{network}, N = {run['n_train']}, B = {run['batch_size']}, "
            f"learning rate {run['learning_rate']:.4g} {run['cost_convention']}, "
            f"momentum {run['momentum']:g}, prior precision {run['prior_precision']:g}, "
            f"{run['steps']} updates, seed {run['seed']}"
        )
        for quantity in ("train_cross_entropy", "test_cross_entropy"):
            yield setting, quantity, run[quantity]


def _paths(data: Any) -> Named:
    """Logistic regression by prior precision, at the weakest, the middle and the strongest."""
    for (pixels, labels), columns in data["curves"]:
        priors = columns["prior_precision"]
        for k in (0, len(priors) // 2, len(priors) - 1):
            setting = f"{pixels}, {labels} labels, prior precision {priors[k]:g}"
            for quantity in ("E", "margin", "test_cross_entropy"):
                yield setting, quantity, columns[quantity][0][k]


def _figure_2(data: Any) -> Named:
    yield from _paths(data)
    yield "reparameterization", "change of Laplace's evidence", data["invariance"]["laplace"]


def _figure_9(data: Any) -> Named:
    for over in ("over_examples", "over_batches"):
        for k, shape in enumerate(data[over][0]):
            for quantity in ("ks_distance", "skewness"):
                yield f"entry {k} {over.replace('_', ' ')}", quantity, shape[quantity]
    for k, entry in enumerate(data["one_entry"]):
        for quantity in ("mean", "deviation"):
            yield f"one entry, {('single examples', 'batches')[k]}", quantity, entry[quantity]
    for k, distance in enumerate(data["approach"][0]):
        yield f"batch size {k} of the approach", "ks_distance", distance


def _figure_10(data: Any) -> Named:
    for group in ("true", "random", "l2"):
        for batch_size, minima in data[group]:
            setting = f"{group}, B = {batch_size}"
            for quantity in ("test_cross_entropy", "gap", "top_curvature", "prior_precision"):
                yield setting, quantity, minima[0][quantity]
            for prior, E in minima[0]["E"].items():
                yield f"{setting}, prior precision {prior}", "E", E
    yield "rescaled", "top curvature", data["rescaling"]["top"]


def _figure_11(data: Any) -> Named:
    for minimum in data["maps"]:
        yield f"at the MAP, {minimum['labels']} labels", "E", minimum["E"]
    for group in ("bets", "random_bets"):
        for bet in data[group]:
            setting = f"prequential, {bet['labels']} labels, B = {bet['batch_size']}"
            for quantity in ("E", "E_plain", "last_loss", "test_cross_entropy"):
                yield setting, quantity, bet[quantity]
    for sample in data["sampled"]:
        yield f"sampled, {sample['labels']} labels", "E", sample["E"]


def _appendix_a(data: Any) -> Named:
    visits = data["visits"]
    for minimum in visits["minima"]:
        for quantity in ("cost", "log_evidence", "laplace"):
            yield f"{minimum['name']} minimum", quantity, minimum[quantity]
    for k, share in enumerate(visits["expected"]):
        yield f"minimum {k}", "share of the posterior", share
    yield "two minima", "temperature of equal shares", visits["equal_temperature"]
    for model, (draws, *_) in data["draws"].items():
        yield model, "prior precision", draws["prior_precision"]
        yield model, "test cross-entropy at the minimum", draws["minimum"][1]
        yield model, "test cross-entropy averaged", draws["averaged"][1]


def _appendix_c(data: Any) -> Named:
    for (point, sampler, batch_size), ratio in data["ratios"]:
        yield f"{point}, {sampler}, B = {batch_size}", "variance over its formula", ratio["value"]
    for point, noise in zip(("at initialisation", "trained"), data["noise"][0], strict=True):
        for quantity in ("trace", "participation"):
            yield point, quantity, noise[quantity]


def _appendix_d(data: Any) -> Named:
    def named(s: dict[str, Any]) -> str:
        return f"{s['kind']}, B = {s['batch_size']}, momentum {s['momentum']:g}"

    for setting, ratio in data["quadratic"]:
        yield f"quadratic, {named(setting)}", "ratio of variances", ratio["value"]
    network = data["networks"][0]
    yield "network", "top curvature", network["top_curvature"]
    yield "network", "stiffening", network["stiffening"]
    for setting, blocks in network["shown"]:
        yield f"network, {named(setting)}", "mean over blocks", float(np.mean(blocks))


def _appendix_e(data: Any) -> Named:
    tuned = data["tuned"][0]
    for name in ("start", "recipe"):
        yield name, "batch size", tuned["result"][name]["batch_size"]
    for name in ("before", "after"):
        yield f"{name} tuning", "mean test accuracy", float(np.mean(tuned[name]))
    for step in tuned["result"]["trail"]:
        recipe = step["recipe"]
        setting = (
            f"stage {step['stage']}, B = {recipe['batch_size']}, "
            f"learning rate {recipe['learning_rate']:.4g}, momentum {recipe['momentum']:.4g}"
        )
        yield setting, "score", step["score"]


def _law(data: Any) -> Named:
    for prediction in data["predictions"]:
        case = prediction["case"]
        setting = (
            f"N = {case['n_train']}, learning rate {case['learning_rate']:g}, "
            f"momentum {case['momentum']:g}, {case['steps']} updates, {case['hidden_widths']}"
        )
        yield setting, "predicted best batch size", prediction["value"]


_SECTIONS = {
    "1": _paths,
    "2": _figure_2,
    "9": _figure_9,
    "10": _figure_10,
    "11": _figure_11,
    "A": _appendix_a,
    "C": _appendix_c,
    "D": _appendix_d,
    "E": _appendix_e,
    "law": _law,
}
