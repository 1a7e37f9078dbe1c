"""From sections to a report on disk: measure what is not kept, then judge, draw and show.

Each stage reads what the one before it wrote. The report of a folder is made from the data that the
folder keeps, and the full-scale results beside it from the data that ship with noisescale: neither
measures anything.
"""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from noisescale._version import __version__
from noisescale.checks import check_choice, check_whole
from noisescale.data import load_mnist
from noisescale.errors import InputError
from noisescale.jobs.engines import LazyEngine, open_engine
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore
from noisescale.paper.claims import entries
from noisescale.paper.documents import Kept, keep, measured_alike, read, report_path
from noisescale.paper.keeping import write_whole
from noisescale.paper.readings import meanings, reading_entries
from noisescale.paper.report import Shown, render, runs_table
from noisescale.paper.second import second_statistics
from noisescale.paper.section import SCALES, Context, ScaleName, Section
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped

CLAIMS_SCHEMA = 1
_SEEDS = {"smoke": 1, "quick": 2, "full": 5}
_HEAD = ("schema", "version", "scale", "data", "seeds", "seconds")


@dataclass(frozen=True)
class PaperReport:
    """A written report: where it is, the content of its ``claims.json``, and the verdicts of the
    full-scale results that ship with noisescale, by claim and reading.
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
    sections = _choose(only, scale)
    n_seeds = check_whole("seeds", _SEEDS[scale] if seeds is None else seeds, at_least=1)
    _prepare(out)
    progress = progress or Progress()
    began = time.perf_counter()
    with ExitStack() as closing:
        store = closing.enter_context(RunStore(out, write=True))
        engine = LazyEngine(lambda: open_engine(executor, workers=workers))
        closing.callback(engine.stop)
        progress.line("loading MNIST")
        context = Context(load_mnist(), scale, n_seeds, store, engine, progress, folder=out)
        measured = []
        for section in sections:
            progress.line(section.title)
            measured.append((section, _measure(section, context, out)))
        head = {
            "schema": CLAIMS_SCHEMA,
            "version": __version__,
            "scale": scale,
            "data": _describe(context),
            "seeds": n_seeds,
            "seconds": round(time.perf_counter() - began, 1),
        }
        return _write(out, head, measured, store, progress)


def redraw(folder: Path, progress: Progress | None = None) -> PaperReport:
    """Write the report of ``folder`` again from what was measured there; nothing is run.

    A section that other code measured is shown as such.
    """
    head = _read_head(folder)
    progress = progress or Progress()
    progress.line("reading what was measured")
    with RunStore(folder) as store:
        measured = [
            (section, kept)
            for section in SECTIONS.values()
            if (kept := read(_path(folder, section, head), section, store)) is not None
        ]
        if not measured:
            raise InputError(f"nothing of the report in {folder} can be shown again: run `paper`.")
        return _write(folder, head, measured, store, progress)


def _measure(section: Section, context: Context, out: Path) -> Kept:
    """A section's data: as they are kept, if measuring again would give the same."""
    path = report_path(out, section, context.scale, context.seeds)
    kept = read(path, section, context.store)
    if kept is not None and measured_alike(kept, section, context.at):
        return kept
    data = section.measure(context)
    keep(path, section, data)
    return Kept(data, section.code, __version__)


def _path(folder: Path, section: Section, head: dict[str, Any]) -> Path:
    return report_path(folder, section, head["scale"], head["seeds"])


def _describe(context: Context) -> dict[str, Any]:
    """What the report says of its data; not where on this machine they lie."""
    data = context.data
    source = "the cache" if data.source.startswith("cache ") else data.source
    return {
        "name": data.name,
        "source": source,
        "complete": data.complete,
        "fingerprint": data.fingerprint,
    }


def _read_head(folder: Path) -> dict[str, Any]:
    path = folder / "claims.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content = {name: content[name] for name in _HEAD}
        check_choice("scale", content["scale"], SCALES)
        check_whole("seeds", content["seeds"], at_least=1)
        for name in ("name", "source", "complete", "fingerprint"):
            content["data"][name]
    except OSError as error:
        raise InputError(
            f"there is no report in {folder} ({error.strerror}): make one with `noisescale paper "
            f"--out {folder}`."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not what `noisescale paper` writes ({error}).") from None
    return content


def _choose(only: Iterable[str] | None, scale: ScaleName) -> list[Section]:
    """The sections asked for, in the report's order."""
    if only is None:
        return [s for s in SECTIONS.values() if scale == "full" or not s.reading]
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
    measured: list[tuple[Section, Kept]],
    store: RunStore,
    progress: Progress,
) -> PaperReport:
    """Judge and draw what was measured here and what ships, and write the page."""
    here = {section.id: Shown.of(section, kept) for section, kept in measured}
    claims = head | verdicts_of(here)
    progress.line("full-scale results")
    full = full_scale()
    for shown in here.values():
        for picture in shown.pictures:
            write_whole(out / "figures" / f"{picture.name}.svg", picture.svg)
    text = json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(out / "claims.json", text + "\n")
    index = out / "index.html"
    write_whole(
        index, render(claims, here, full, verdicts_of(full), SECTIONS.values(), runs_table(store))
    )
    judged = [j for one in full.values() for j in (*one.judgements, *one.findings.readings)]
    return PaperReport(index, claims, {j.id: j.verdict.value for j in judged if j.primary})


def verdicts_of(shown: Mapping[str, Shown]) -> dict[str, Any]:
    """Claims, second readings and second statistics of what was judged, as ``claims.json`` has."""
    judged = entries(j for one in shown.values() for j in one.judgements)
    readings = reading_entries(j for one in shown.values() for j in one.findings.readings)
    return {
        "claims": judged,
        "readings": readings,
        "meanings": meanings(judged, readings),
        "second_statistics": second_statistics(shown.values()),
    }


@cache
def full_scale() -> dict[str, Shown]:
    """What ships with noisescale, judged and drawn, by section."""
    return {
        section.id: Shown.of(section, kept)
        for section in SECTIONS.values()
        if (kept := shipped(section)) is not None
    }
