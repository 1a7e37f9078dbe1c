"""What a spot check measures again of the sections that are not made of runs.

A slice is a part of a section's measurement that takes seconds. It is measured in a worker and
compared, number by number, with the section's shipped data. All of it is seeded, so that another
machine differs by rounding alone; how far that may carry a number is its tolerance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from noisescale.data import load_kept
from noisescale.jobs.keyed import Keyed
from noisescale.jobs.record import guarded
from noisescale.paper import appendix_c, appendix_d, appendix_e, figure9, figure10, location
from noisescale.paper.logistic import Curves, CurvesBy, measure_curves
from noisescale.paper.section import Context
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped
from noisescale.plain import to_plain
from noisescale.training import DenseNetwork
from noisescale.tune import train_function

Values = dict[str, Any]  # numbers and arrays of them, by name
WORK = "noisescale.paper.slices:run_slices"
_SECOND = 4e10  # multiply-adds that a core does in one, about


@dataclass(frozen=True)
class Tolerance:
    """How far rounding may carry a number: ``absolute + relative |shipped|``, and why so far."""

    why: str
    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True)
class Slice:
    """A part of a section that is measured again.

    Attributes:
        sections: whose shipped data have it.
        what: the part, in words.
        seconds: about how long it takes on one core.
        measure: measures it, in a context of full scale.
        shipped: the same numbers, out of a section's shipped data.
        tolerances: by how the names of the numbers end.
    """

    sections: tuple[str, ...]
    what: str
    seconds: float
    measure: Callable[[Context], Values]
    shipped: Callable[[Any], Values]
    tolerances: Mapping[str, Tolerance]


@dataclass(frozen=True)
class Compared:
    """A quantity of a slice, where here and shipped differ most for their tolerance."""

    section: str
    part: str
    quantity: str
    n: int
    shipped: float
    here: float
    tolerance: float
    why: str

    @property
    def agrees(self) -> bool:
        """Whether every one of its numbers is within its tolerance."""
        return abs(self.here - self.shipped) <= self.tolerance


def compare(name: str, here: Values) -> list[Compared]:
    """What was measured of the slice ``name`` against what is shipped of it."""
    one = SLICES[name]
    return [
        _largest(one, section, quantity, np.ravel(value).astype(float), np.ravel(here[quantity]))
        for section in one.sections
        if (data := shipped_data(section)) is not None
        for quantity, value in one.shipped(data).items()
    ]


def shipped_data(section: str) -> Any:
    """A section's shipped data; None if there are none."""
    kept = shipped(SECTIONS[section])
    return None if kept is None else kept.data


def _largest(one: Slice, section: str, quantity: str, told: Any, seen: Any) -> Compared:
    allowed = next(t for end, t in one.tolerances.items() if quantity.endswith(end))
    tolerance = allowed.absolute + allowed.relative * np.abs(told)
    # What is not a number here, or of another shape, differs from anything.
    seen = np.asarray(seen, float) if len(seen) == len(told) else np.full(len(told), np.nan)
    k = int(np.argmax(np.nan_to_num(np.abs(seen - told) / tolerance, nan=np.inf)))
    return Compared(
        section=section,
        part=one.what,
        quantity=quantity,
        n=len(told),
        shipped=float(told[k]),
        here=float(seen[k]),
        tolerance=float(tolerance[k]),
        why=allowed.why,
    )


@dataclass(frozen=True)
class SliceRun(Keyed):
    """A slice as an engine executes it and a store keeps it."""

    kind = "slice"

    name: str

    @property
    def cost(self) -> float:
        """Its work in multiply-adds, roughly."""
        return SLICES[self.name].seconds * _SECOND


def run_slices(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each slice. This is what workers execute."""
    return [guarded(lambda: _run(task["name"])) for task in tasks]  # noqa: B023


def _run(name: str) -> dict[str, Any]:
    # Without a store: a slice makes no runs, and measures for the first seed alone.
    nowhere: Any = None
    context = Context(load_kept("mnist"), "full", 1, nowhere, nowhere)
    values = to_plain(SLICES[name].measure(context))
    return {"status": "done", "error": None, "history": {}, "final": {"values": values}}


def _shipped_seeds(section: str) -> int:
    data = shipped_data(section)
    return 1 if data is None else int(data.at.seeds)


def _curves(curves: CurvesBy) -> Values:
    """By what was measured, over preprocessings, labels, seeds and prior precisions."""
    names = (entry.name for entry in fields(Curves) if entry.name != "prior_precision")
    return {
        name.replace("_", " "): np.array([getattr(along, name) for along in curves.values()])
        for name in names
    }


def _gradient_shapes(data: figure9.Data) -> Values:
    return {
        "KS distance over examples": [shape.ks_distance for shape in data.over_examples[0]],
        "KS distance over batches": [shape.ks_distance for shape in data.over_batches[0]],
        "median KS distance by batch size": data.approach[0],
    }


def _rescaling(found: figure10.Rescaling) -> Values:
    return {"growth of the top eigenvalue": found.top, "change of E, prior kept": found.kept}


def _landscape(context: Context) -> Values:
    landscape = location.survey(601)
    return {
        "ln evidence by quadrature": [m.log_evidence for m in landscape.minima],
        "ln evidence by Laplace": [m.laplace for m in landscape.minima],
        "shares of the evidence": landscape.probabilities(),
    }


def _visits(data: Any) -> Values:
    minima = data.visits.minima
    return {
        "ln evidence by quadrature": [m.log_evidence for m in minima],
        "ln evidence by Laplace": [m.laplace for m in minima],
        "shares of the evidence": data.visits.expected,
    }


def _gradient_noise(data: appendix_c.Data) -> Values:
    return {
        f"{quantity} {when}": getattr(noise, name)
        for noise, when in zip(data.noise[0], ("at initialisation", "in mid-training"), strict=True)
        for name, quantity in (("trace", "tr F"), ("participation", "participation"))
    }


def _fluctuations(context: Context) -> Values:
    data = shipped_data("D")
    return {
        f"noise scale shown at {setting}": appendix_d._quadratic(context, setting).value
        for setting in list(data.quadratic)[::5]
    }


def _shipped_fluctuations(data: appendix_d.Data) -> Values:
    return {
        f"noise scale shown at {setting}": data.quadratic[setting].value
        for setting in list(data.quadratic)[::5]
    }


def _first_recipe(context: Context) -> Values:
    """The recipe that tuning began with, on test images, from the first fresh seed."""
    size, start = appendix_e.SIZES["full"], shipped_data("E").tuned[0].result.start
    drawn = context.data.subset(n_train=size.n_train + size.n_validation, seed=0)
    network = DenseNetwork(size.widths)
    train = train_function(
        network,
        network.init,
        (drawn.x_train[: size.n_train], drawn.y_train[: size.n_train]),
        (context.data.x_test, context.data.y_test),
    )
    score = train(
        batch_size=start.batch_size,
        learning_rate=start.learning_rate,
        momentum=start.momentum,
        steps=round(size.epochs * size.n_train / start.batch_size),
        seed=appendix_e._FRESH,
    )
    return {"test accuracy of the first recipe": score}


_EVIDENCE = Tolerance(
    "of second order in where the minimum is, which is exact to a Newton decrement of 1e-10",
    absolute=1e-3,
)
_MINIMUM = Tolerance(
    "of first order in where the minimum is, loose under the weakest priors",
    absolute=1e-5,
    relative=1e-3,
)
_IMAGES = Tolerance("two images of 10,000 on the boundary", absolute=2e-4)
_ONE_IMAGE = Tolerance("one image of 800 on the boundary", absolute=1 / 800)
_SORTED = Tolerance("two of 1,000 examples change places", absolute=2e-3)
_QUADRATURE = Tolerance("sums in double precision", absolute=1e-6, relative=1e-6)
_SINGLE = Tolerance("sums in single precision", relative=1e-3)
_TRAINED = Tolerance("training amplifies rounding", relative=0.02)
_FILTERED = Tolerance("a stable filter in double precision", relative=1e-6)

SLICES: dict[str, Slice] = {
    "1 and 2": Slice(
        ("1", "2"),
        "all seeds and prior precisions",
        40.0,
        lambda context: _curves(measure_curves(replace(context, seeds=_shipped_seeds("1")))),
        lambda data: _curves(data.curves),
        {"train accuracy": _ONE_IMAGE, "test accuracy": _IMAGES, "E": _EVIDENCE, "": _MINIMUM},
    ),
    "9": Slice(
        ("9",),
        "first seed, 100 entries",
        15.0,
        lambda context: _gradient_shapes(figure9.measure(context)),
        _gradient_shapes,
        {"": _SORTED},
    ),
    "10": Slice(
        ("10",),
        "the rescaled network",
        8.0,
        lambda context: _rescaling(figure10.rescale(context)),
        lambda data: _rescaling(data.rescaling),
        {"": _TRAINED},
    ),
    "A": Slice(
        ("A",), "evidence of the three minima", 30.0, _landscape, _visits, {"": _QUADRATURE}
    ),
    "C": Slice(
        ("C",),
        "first seed, at initialisation and after 1,000 updates",
        20.0,
        lambda context: _gradient_noise(appendix_c.measure(context)),
        _gradient_noise,
        {"at initialisation": _SINGLE, "in mid-training": _TRAINED},
    ),
    "D": Slice(
        ("D",),
        "three of the settings on the quadratic",
        4.0,
        _fluctuations,
        _shipped_fluctuations,
        {"": _FILTERED},
    ),
    "E": Slice(
        ("E",),
        "MNIST, the first recipe from the first fresh seed",
        8.0,
        _first_recipe,
        lambda data: {"test accuracy of the first recipe": data.tuned[0].before[0]},
        {"": Tolerance("training amplifies rounding, by less than a seed does", absolute=0.003)},
    ),
}
