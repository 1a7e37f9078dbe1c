"""From sections to a report on disk."""

import json
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from noisescale._version import __version__
from noisescale.checks import check_choice, check_whole
from noisescale.data import load_mnist
from noisescale.errors import InputError
from noisescale.paper import (
    appendix_a,
    appendix_d,
    appendix_e,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    figure9,
    figure10,
    gradient_noise,
    units,
)
from noisescale.paper.claims import all_claims, counts, entries
from noisescale.paper.report import render
from noisescale.paper.section import SCALES, Context, Outcome, ScaleName, Section
from noisescale.progress import Progress
from noisescale.sweep import RunStore
from noisescale.sweep.engines import Engine, open_engine

SECTIONS: dict[str, Section] = {
    module.SECTION.id: module.SECTION
    for module in (
        units,
        figure1,
        figure2,
        figure3,
        figure4,
        figure5,
        figure6,
        figure7,
        figure8,
        figure9,
        figure10,
        appendix_a,
        gradient_noise,
        appendix_d,
        appendix_e,
    )
}
CLAIMS_SCHEMA = 1
_SEEDS = {"smoke": 1, "quick": 2, "full": 5}


@dataclass(frozen=True)
class PaperReport:
    """A written report: where it is, and the content of its ``claims.json``."""

    index: Path
    claims: dict[str, Any]


def run_paper(
    out: Path,
    *,
    scale: ScaleName = "quick",
    only: Iterable[str] | None = None,
    seeds: int | None = None,
    workers: int | None = None,
    executor: Any = None,
    progress: Progress | None = None,
) -> PaperReport:
    """Measure the sections asked for and write the report into the folder ``out``.

    Runs are kept in ``out/runs.sqlite``: an interrupted report goes on from there. ``workers`` and
    ``executor`` are those of :func:`noisescale.run_sweep`.
    """
    check_choice("scale", scale, SCALES)
    sections = _choose(only)
    n_seeds = check_whole("seeds", _SEEDS[scale] if seeds is None else seeds, at_least=1)
    _prepare(out)
    progress = progress or Progress()
    began = time.perf_counter()
    with ExitStack() as closing:
        store = closing.enter_context(RunStore(out, write=True))

        @cache
        def engine() -> Engine:  # started by the first section that lacks a run
            started = open_engine(executor, workers=workers)
            closing.callback(started.stop)
            return started

        progress.line("loading MNIST")
        context = Context(load_mnist(), scale, n_seeds, store, engine, progress, folder=out)
        outcomes = []
        for section in sections:
            progress.line(section.title)
            outcomes.append((section, section.measure(context)))
    claims = {
        "schema": CLAIMS_SCHEMA,
        "version": __version__,
        "scale": scale,
        "data": {
            "name": context.data.name,
            "source": context.data.source,
            "complete": context.data.complete,
            "fingerprint": context.data.fingerprint,
        },
        "seeds": n_seeds,
        "seconds": round(time.perf_counter() - began, 1),
        "claims": entries(j for _, outcome in outcomes for j in outcome.judgements),
    }
    return _write(out, claims, outcomes)


def _choose(only: Iterable[str] | None) -> list[Section]:
    """The sections asked for, in the report's order."""
    if only is None:
        return list(SECTIONS.values())
    wanted = [name.strip() for name in only]
    known = {claim.section for claim in all_claims()}
    for name in wanted:
        if name in SECTIONS:
            continue
        available = ", ".join(SECTIONS)
        if name in known:
            raise InputError(
                f"section {name} cannot be measured by noisescale {__version__} yet: "
                f"choose from {available}."
            )
        raise InputError(f"there is no section {name!r}: choose from {available}.")
    return [section for section in SECTIONS.values() if section.id in wanted]


def _prepare(out: Path) -> None:
    """Make the folder before the work begins: an hour's runs must not end in a bad path."""
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {out} ({error.strerror}): choose another --out."
        ) from None


def _write(
    out: Path, claims: dict[str, Any], outcomes: list[tuple[Section, Outcome]]
) -> PaperReport:
    for _, outcome in outcomes:
        for picture in outcome.pictures:
            _replace(out / "figures" / f"{picture.name}.svg", picture.svg)
    _replace(out / "claims.json", _as_json(claims))
    index = out / "index.html"
    _replace(index, render(claims, counts(claims["claims"]), outcomes))
    return PaperReport(index, claims)


def _as_json(claims: dict[str, Any]) -> str:
    return json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write whole or not at all, so that an interrupted run leaves the old report readable."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
