"""What ``benchmarks/pytorch.py`` measured, as docs/pytorch.md shows it."""

import csv
import re
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "pytorch.csv"
_RATIOS = (
    ("dual", ("plain rows", "dual"), "`dual` takes {:.2f} of the plain rows' time"),
    ("noise", ("loop", "noise"), "`gradient_noise` takes {:.2f} of the loop's"),
    ("noise", ("backpack", "noise"), "`gradient_noise` takes {:.2f} of BackPACK's"),
    ("kfac", ("laplace-torch", "kron"), "`kfac` takes {:.2f} of laplace-torch's"),
    ("diagonal", ("laplace-torch", "diag"), "`diagonal` takes {:.2f} of laplace-torch's"),
    ("last layer", ("laplace-torch", "last layer"), "the last layer takes {:.2f} of theirs"),
)
Row = dict[str, str]


def pytorch_passage(results: Path = RESULTS) -> str:
    """A table of the cells that were run, ratios, and why others were not."""
    with results.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    done = [row for row in rows if row["seconds"]]
    table = [
        "| model | library | method | CPU time | memory | counted | value |",
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(_cells(row))} |" for row in done),
    ]
    ratios = [f"- {said}" for said in (*_ratios(done), *_by_products(done), *_by_the_clock(done))]
    left = [
        f"- {_shape(row)}, {row['library']}, {row['method']}: {row['note']}"
        for row in rows
        if not row["seconds"]
    ]
    return "\n".join([*table, "", "Side by side:", "", *ratios, "", "Not measured:", "", *left])


def _by_products(rows: list[Row]) -> list[str]:
    """Lanczos by the time of a product: calls do unlike numbers of them."""
    each = {}
    for row in rows:
        if row["method"] == "lanczos" and (counted := re.search(r"(\d+) products", row["note"])):
            each[_shape(row), row["library"]] = float(row["seconds"]) / int(counted[1])
    return [
        f"`lanczos` takes {ours:.2g} s for each of its products, curvlinops' operator "
        f"{theirs:.2g} s: {ours / theirs:.2f} of it ({shape})"
        for (shape, library), ours in each.items()
        if library == "noisescale" and (theirs := each.get((shape, "curvlinops")))
    ]


def _by_the_clock(rows: list[Row]) -> list[str]:
    """Gradient noise with all threads, as its user meets it."""
    took = {
        (_shape(row), row["library"]): float(row["clock_seconds"])
        for row in rows
        if row.get("clock_seconds")
    }
    return [
        f"by the clock, with two threads, `gradient_noise` takes {ours:.2g} s, the loop "
        f"{took[shape, 'loop']:.2g} s: {ours / took[shape, 'loop']:.2f} of it ({shape})"
        for (shape, library), ours in took.items()
        if library == "noisescale" and (shape, "loop") in took
    ]


def _shape(row: Row) -> str:
    return f"{row['model']}, N = {int(row['n_train']):,}"


def in_seconds(took: float) -> str:
    """To two digits: 0.079 s, 440 s."""
    return f"{float(f'{took:.2g}'):g} s"


def _cells(row: Row) -> tuple[str, ...]:
    value = f"{float(row['value']):.6g}"
    return (
        _shape(row),
        row["library"],
        row["method"],
        in_seconds(float(row["seconds"])),
        f"{float(row['gib']):.2f} GiB",
        f"{float(row['predicted_gib']):.2f} GiB" if row["predicted_gib"] else "",
        f"{value}, {row['note']}" if row["note"] else value,
    )


def _ratios(rows: list[Row]) -> list[str]:
    took = {(_shape(row), row["library"], row["method"]): float(row["seconds"]) for row in rows}
    return [
        f"{said.format(ours / theirs)} ({shape})"
        for shape in dict.fromkeys(_shape(row) for row in rows)
        for method, (library, peer), said in _RATIOS
        if (ours := took.get((shape, "noisescale", method)))
        and (theirs := took.get((shape, library, peer)))
    ]
