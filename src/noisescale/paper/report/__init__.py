"""The report: one HTML file that needs nothing else."""

import base64
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from noisescale.drawing import inline
from noisescale.errors import InputError
from noisescale.files import read_bytes, write_whole
from noisescale.paper.checking import SpotCheck
from noisescale.paper.claims import (
    Claim,
    Judgement,
    all_claims,
    counts,
    headline,
    result_in_words,
)
from noisescale.paper.corrections import CORRECTIONS
from noisescale.paper.documents import Kept
from noisescale.paper.readings import Reading, all_readings
from noisescale.paper.report.checked import check_part
from noisescale.paper.section import Findings, Measurement, Picture, Section
from noisescale.sweep import RunStore
from noisescale.text import printable

_OURS = b"<title>noisescale: "  # as frame.html begins
_COLUMNS = [
    "data",
    "learning_rate",
    "batch_size",
    "momentum",
    "n_train",
    "steps",
    "prior_precision",
    "cost_convention",
    "seed",
    "status",
    "test_accuracy",
    "test_cross_entropy",
    "train_accuracy",
    "train_cross_entropy",
    "score",
    "duration",
    "key",
]


@dataclass(frozen=True)
class Shown:
    """A section's data, judged and drawn."""

    findings: Findings
    pictures: tuple[Picture, ...]
    seeds: int
    other_version: str  # which one measured it, if it is not the present one; else empty
    command: str  # that would measure it

    @classmethod
    def of(cls, section: Section, kept: Kept) -> Self:
        """Judge and draw what was kept."""
        at = kept.data.at
        return cls(
            section.judge(kept.data),
            section.draw(kept.data),
            at.seeds,
            _told_of_version(section, kept),
            f"noisescale paper --only {section.id} --scale {at.scale} --seeds {at.seeds}",
        )

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """The verdicts."""
        return self.findings.judgements

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The numbers."""
        return self.findings.measurements

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else there is to say."""
        return self.findings.remarks


def _told_of_version(section: Section, kept: Kept) -> str:
    if kept.by_this_version(section):
        return ""
    return f"measured by version {kept.version}, this is version {section.version}"


def render(
    claims: dict[str, Any],
    here: Mapping[str, Shown],
    full: Mapping[str, Shown],
    full_verdicts: dict[str, Any],
    sections: Iterable[Section],
    runs: str,
    check: SpotCheck | None = None,
) -> str:
    """The page, everything from data escaped, figures inside as data addresses.

    ``here`` is what was measured in the folder, ``full`` the full-scale results, both by section,
    ``claims`` and ``full_verdicts`` their verdicts; ``runs`` are the runs as CSV, ``check`` says
    what running shipped ones again gave.
    """
    environment = page_environment()
    environment.filters["result"] = result_in_words
    judged = full_verdicts["claims"]
    rows = [*judged, *full_verdicts["readings"]]
    numbers = {name: shown.measurements for name, shown in full.items()}
    return environment.from_string(_file("template.html")).render(
        report=claims,
        counts=counts(claims["claims"]),
        full_counts=counts(judged),
        own_counts=counts(claims["claims"], own=True),
        own_full_counts=counts(judged, own=True),
        headline=headline(claims["claims"]),
        full_headline=headline(judged),
        claims=side_by_side(all_claims(), claims["claims"], judged),
        readings=side_by_side(all_readings(), claims["readings"], full_verdicts["readings"]),
        meanings=full_verdicts["meanings"],
        sections=[s for s in sections if s.id in here or s.id in full],
        here=here,
        full=full,
        checked=check_part(check, environment) if claims["scale"] == "check" else None,
        corrections=[(one, one.numbers(rows, numbers)) for one in CORRECTIONS],
        runs=runs,
        n_runs=max(runs.count("\n") - 1, 0),
        script=_file("calculator.js"),
    )


def page_environment() -> Environment:
    """What pages are made in: their frame, everything from data escaped, figures as elements.

    A page extends ``frame.html``. Each figure gets ids of its own; tables become addresses.
    """
    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = itertools.count(1)
    environment.filters["inline"] = lambda svg, alt: Markup(
        inline(svg, alt, f"figure{next(figures)}")
    )
    environment.filters["table"] = lambda csv: _address(csv, "text/csv")
    environment.globals["page_style"] = _file("style.css")
    environment.globals["hover_script"] = _file("hover.js")
    return environment


def check_page(path: Path) -> None:
    """Refuse to replace what is there if it is no page of ours."""
    if path.exists() and (not path.is_file() or _OURS not in read_bytes(path)):
        raise InputError(
            f"{path} is there and no page of noisescale: move it away, its place is needed."
        )


def write_page(path: Path, page: str) -> None:
    """Write a page, unless its place is taken by something that is not ours."""
    check_page(path)
    write_whole(path, printable(page))


def side_by_side(
    judged: Iterable[Claim | Reading], fresh: list[dict[str, Any]], full: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each claim or reading and convention, with what was found ``here`` and in ``full``.

    Either is None if it was not measured.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for where, rows in (("full", full), ("here", fresh)):
        for row in rows:
            if row["measured"] is not None:
                found.setdefault((row["id"], row["convention"]), {})[where] = row
    merged = []
    for claim in judged:
        conventions = [name for id, name in found if id == claim.id] or ["default"]
        for convention in conventions:
            pair = found.get((claim.id, convention), {})
            merged.append(
                asdict(claim)
                | {"convention": convention, "here": pair.get("here"), "full": pair.get("full")}
            )
    return merged


def runs_table(store: RunStore) -> str:
    """All runs of the store as CSV, a row a run."""
    frame = store.frame()
    text: str = frame[[name for name in _COLUMNS if name in frame]].to_csv(index=False)
    return text


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _address(content: str, kind: str) -> str:
    return (
        f"data:{kind};base64,"
        + base64.b64encode(content.encode("utf-8", "backslashreplace")).decode()
    )
