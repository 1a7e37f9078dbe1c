"""From sections to a report on disk."""

import json
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from noisescale._version import __version__
from noisescale.checks import check_choice, check_whole
from noisescale.data import load_mnist
from noisescale.errors import InputError
from noisescale.jobs.engines import Engine, open_engine
from noisescale.jobs.progress import Progress
from noisescale.paper import (
    appendix_a,
    appendix_c,
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
    units,
)
from noisescale.paper.claims import entries
from noisescale.paper.outcomes import (
    from_json,
    keep_outcome,
    measured_before,
    outcome_path,
    read_outcome,
)
from noisescale.paper.published import published
from noisescale.paper.report import render, runs_table
from noisescale.paper.section import (
    SCALES,
    Context,
    MissingError,
    NoImages,
    Outcome,
    ScaleName,
    Section,
)
from noisescale.sweep import RunStore

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
        appendix_c,
        appendix_d,
        appendix_e,
    )
}
CLAIMS_SCHEMA = 1
_SEEDS = {"smoke": 1, "quick": 2, "full": 5}


@dataclass(frozen=True)
class PaperReport:
    """A written report: where it is, the content of its ``claims.json``, and the verdicts of the
    full-scale results that ship with noisescale, by claim.
    """

    index: Path
    claims: dict[str, Any]
    full_scale: dict[str, str]


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

    Runs are kept in ``out/runs.sqlite``, what else was measured in ``out/measured``: an interrupted
    report goes on from there. ``workers`` and ``executor`` are those of
    :func:`noisescale.run_sweep`.
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
            outcomes.append((section, _outcome(section, context)))
        seconds = round(time.perf_counter() - began, 1)
        data = {
            name: getattr(context.data, name)
            for name in ("name", "source", "complete", "fingerprint")
        }
        return _write(out, _head(scale, n_seeds, seconds, data), outcomes, store, progress)


def redraw(folder: Path, progress: Progress | None = None) -> PaperReport:
    """Write the report of ``folder`` again from what was measured there; nothing is run."""
    head = _read_head(folder)
    progress = progress or Progress()
    progress.line("reading what was measured")
    data: Any = NoImages(**head["data"])
    outcomes = []
    with RunStore(folder) as store:
        context = Context(
            data, head["scale"], head["seeds"], store, _refuse, progress, folder=folder, frozen=True
        )
        for section in SECTIONS.values():
            if (found := _shown_again(section, context)) is not None:
                outcomes.append((section, found))
        if not outcomes:
            raise InputError(f"nothing of the report in {folder} can be shown again: run `paper`.")
        return _write(folder, head, outcomes, store, progress)


def _refuse() -> Engine:
    raise MissingError("a run is not in the store")


def _shown_again(section: Section, context: Context) -> Outcome | None:
    """From the stored runs, or else as it was kept; None if it was never measured."""
    if section.from_runs:
        with suppress(MissingError):
            return section.measure(context)
    assert context.folder is not None
    kept = read_outcome(outcome_path(context.folder, section.id, context.scale, context.seeds))
    return None if kept is None else from_json(kept["outcome"])


def _outcome(section: Section, context: Context) -> Outcome:
    found = measured_before(section, context)
    if found is None:
        found = section.measure(context)
        keep_outcome(section, context, found)
    return found


def _head(scale: str, seeds: int, seconds: float, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": CLAIMS_SCHEMA,
        "version": __version__,
        "scale": scale,
        "data": data,
        "seeds": seeds,
        "seconds": seconds,
    }


def _read_head(folder: Path) -> dict[str, Any]:
    path = folder / "claims.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = ("schema", "version", "scale", "data", "seeds", "seconds")
        content = {name: content[name] for name in names}
        check_choice("scale", content["scale"], SCALES)
        check_whole("seeds", content["seeds"], at_least=1)
        content["data"] = {
            name: content["data"][name] for name in ("name", "source", "complete", "fingerprint")
        }
    except OSError as error:
        raise InputError(
            f"there is no report in {folder} ({error.strerror}): make one with `noisescale paper "
            f"--out {folder}`."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not what `noisescale paper` writes ({error}).") from None
    return content


def _choose(only: Iterable[str] | None) -> list[Section]:
    """The sections asked for, in the report's order."""
    if only is None:
        return list(SECTIONS.values())
    wanted = [name.strip() for name in only]
    for name in wanted:
        if name not in SECTIONS:
            raise InputError(f"there is no section {name!r}: choose from {', '.join(SECTIONS)}.")
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
    out: Path,
    head: dict[str, Any],
    outcomes: list[tuple[Section, Outcome]],
    store: RunStore,
    progress: Progress,
) -> PaperReport:
    claims = head | {"claims": entries(j for _, outcome in outcomes for j in outcome.judgements)}
    progress.line("full-scale results")
    shipped = {
        section.id: found
        for section in SECTIONS.values()
        if (found := published(section)) is not None
    }
    for _, outcome in outcomes:
        for picture in outcome.pictures:
            _replace(out / "figures" / f"{picture.name}.svg", picture.svg)
    _replace(out / "claims.json", _as_json(claims))
    index = out / "index.html"
    _replace(index, render(claims, outcomes, shipped, SECTIONS.values(), runs_table(store)))
    judged = [j for found in shipped.values() for j in found.outcome.judgements if j.primary]
    return PaperReport(index, claims, {j.id: j.verdict.value for j in judged})


def _as_json(claims: dict[str, Any]) -> str:
    return json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write whole or not at all, so that an interrupted run leaves the old report readable."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
