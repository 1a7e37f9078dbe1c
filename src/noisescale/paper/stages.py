"""From sections to a report on disk: measure what is not kept, then judge, draw and show.

Each stage reads what the one before it wrote. The report of a folder is made from the data that the
folder keeps, and the full-scale results beside it from the data that ship with noisescale: neither
measures anything. At the scale ``check`` nothing is measured but a sample of what ships, after the
report on it is written.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from noisescale._version import __version__
from noisescale.checks import check_choice, check_number, check_whole, shown
from noisescale.data import load_mnist
from noisescale.errors import InputError
from noisescale.files import write_whole
from noisescale.jobs.engines import LazyEngine, open_engine
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore, store_path
from noisescale.paper.checking import SpotCheck, check_shipped
from noisescale.paper.claims import entries
from noisescale.paper.documents import Kept, keep, read, report_path
from noisescale.paper.keeping import read_document, write_document
from noisescale.paper.readings import meanings, reading_entries, verdicts_on
from noisescale.paper.report import Shown, check_page, render, runs_table, write_page
from noisescale.paper.section import SCALES, Context, ScaleName, Section
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped
from noisescale.plain import from_plain, to_plain

CLAIMS_SCHEMA = 1
MINUTES = 5.0  # of a spot check
CHECK: Literal["check"] = (
    "check"  # the scale at which shipped data are judged, and a sample of them is run again
)
_SEEDS = {"smoke": 1, "quick": 2, "full": 5}


@dataclass(frozen=True)
class _Data:
    """What ``claims.json`` says of the data set."""

    name: str
    source: str
    complete: bool
    fingerprint: str


@dataclass(frozen=True)
class _Head:
    """What ``claims.json`` says of the report that it is of."""

    schema: Literal[1]
    version: str
    scale: Literal["check", "smoke", "quick", "full"]
    data: _Data
    seeds: int
    seconds: float
    more_seeds: dict[str, int] = field(default_factory=dict)
    only: list[str] | None = None  # the sections asked for, if not all


@dataclass(frozen=True)
class _KeptCheck:
    """The document of a spot check: of which sections, and of what which noisescale ships.

    Older ones do not say, and are of the report that they stand beside.
    """

    check: SpotCheck
    version: str = __version__
    sections: list[str] | None = None


@dataclass(frozen=True)
class PaperReport:
    """A written report: where it is, the content of its ``claims.json``, and the verdicts of the
    full-scale results that ship with noisescale, by claim and reading. ``check`` is what running a
    sample of them again said, if that was done.
    """

    index: Path
    claims: dict[str, Any]
    full_scale: dict[str, str]
    check: SpotCheck | None = None


def run_paper(
    out: Path,
    *,
    scale: ScaleName | Literal["check"] = CHECK,
    only: Iterable[str] | None = None,
    seeds: int | None = None,
    minutes: float | None = None,
    check_seed: int | None = None,
    workers: int | None = None,
    executor: Any = None,
    progress: Progress | None = None,
) -> PaperReport:
    """Write the report on the sections asked for into the folder ``out``.

    At the scale ``"check"`` the full-scale data that ship with noisescale are judged and drawn and
    the report is written; then a random sample of these data is measured again, for ``minutes`` at
    the most (5 if None, 0 for none), chosen by ``check_seed`` (the clock if None), and the report
    is written with what came of it. The other scales measure afresh, with ``seeds`` seeds: runs are
    kept in ``out/runs.sqlite``, what else was measured in ``out/measured``, and an interrupted
    report goes on from there. ``workers`` and ``executor`` are those of
    :func:`noisescale.run_sweep`.
    """
    check_choice("scale", scale, (CHECK, *SCALES))
    only = None if only is None else list(only)
    sections = _choose(only, scale)
    n_seeds = check_whole("seeds", _SEEDS.get(scale, 1) if seeds is None else seeds, at_least=1)
    minutes = check_minutes(scale, minutes, check_seed)
    if scale == CHECK and seeds is not None:
        raise InputError(
            f"the scale check measures no seeds afresh, got seeds = {seeds}: give a scale to "
            f"measure at ({', '.join(SCALES)}), or leave them out."
        )
    _prepare(out)
    progress = progress or Progress()
    began = time.perf_counter()
    if scale == CHECK:
        made = _judge_shipped(out, sections, progress)
        if minutes == 0:
            return made
        return check_report(
            made,
            minutes=minutes,
            check_seed=check_seed,
            workers=workers,
            executor=executor,
            progress=progress,
        )
    with ExitStack() as closing:
        store = closing.enter_context(RunStore(out, write=True))
        engine = LazyEngine(lambda: open_engine(executor, workers=workers))
        closing.callback(engine.stop)
        progress.line("loading MNIST")
        context = Context(load_mnist(), scale, n_seeds, store, engine, progress, folder=out)
        more = _more_seeds(sections, n_seeds) if scale == "quick" and seeds is None else {}
        measured = []
        for section in sections:
            progress.line(section.title)
            seeds_of = more.get(section.id, n_seeds)
            enough = replace(context, seeds=seeds_of, version=section.version)
            measured.append((section, _measure(section, enough, out)))
        head = {
            "schema": CLAIMS_SCHEMA,
            "version": __version__,
            "scale": scale,
            "data": _describe(context),
            "seeds": n_seeds,
            "seconds": round(time.perf_counter() - began, 1),
            "more_seeds": more,
            "only": None if only is None else [section.id for section in sections],
        }
        here = {section.id: Shown.of(section, kept) for section, kept in measured}
        return _write(out, head, here, store, progress)


def check_minutes(scale: str, minutes: float | None, check_seed: int | None) -> float:
    """For how long a sample of what ships is measured again; refused where nothing is."""
    for name, value in (("minutes", minutes), ("check_seed", check_seed)):
        if scale != CHECK and value is not None:
            raise InputError(
                f"{name} is of the scale check, got {name} = {shown(value)} at the scale {scale}: "
                "leave it out."
            )
    if check_seed is not None:
        check_whole("check_seed", check_seed, at_least=0)
    given = MINUTES if minutes is None else minutes
    return check_number("minutes", given, "from 0 to 1440", lambda v: 0 <= v <= 1440)


def check_report(
    made: PaperReport,
    *,
    minutes: float,
    check_seed: int | None,
    workers: int | None,
    executor: Any,
    progress: Progress,
) -> PaperReport:
    """Measure a sample of what ships again, and write the report with what came of it."""
    out, claims = made.index.parent, made.claims
    sections = [SECTIONS[name] for name in claims["check"]["sections"]]
    seed = time.time_ns() % 1_000_000 if check_seed is None else check_seed
    engine = LazyEngine(lambda: open_engine(executor, workers=workers))
    with RunStore(out, write=True) as store:
        check = check_shipped(
            sections, minutes=minutes, seed=seed, engine=engine, progress=progress, keep=store
        )
    kept = _KeptCheck(check, sections=claims["check"]["sections"])
    write_document(_check_path(out), to_plain(kept))
    told = {"check": claims["check"] | _summary(check)}
    made = _write_check_page(out, claims | told, full_scale(sections), check)
    if check.interrupted:
        raise KeyboardInterrupt
    return made


def redraw(folder: Path, progress: Progress | None = None) -> PaperReport:
    """Write the report of ``folder`` again from what was measured there; nothing is run.

    A section that another version measured is shown as such.
    """
    head, sections = _read_head(folder)
    progress = progress or Progress()
    progress.line("reading what was measured")
    if head["scale"] == CHECK:
        return _judge_shipped(folder, sections, progress, _read_check(folder, sections))
    with RunStore(folder) as store:
        here = {
            section.id: one
            for section in sections
            if (one := _shown_again(_path(folder, section, head), section, store)) is not None
        }
        if not here:
            raise InputError(f"nothing of the report in {folder} can be shown again: run `paper`.")
        return _write(folder, head, here, store, progress)


def _shown_again(path: Path, section: Section, store: RunStore) -> Shown | None:
    """What a folder keeps of a section, judged and drawn."""
    if (kept := read(path, section, store)) is None:
        return None
    try:
        return Shown.of(section, kept)
    except Exception as error:  # numbers of the right types that no measurement gives
        raise InputError(
            f"{path} cannot be judged ({type(error).__name__}: {error}): remove it, and "
            "`noisescale paper` measures the section again."
        ) from error


def _measure(section: Section, context: Context, out: Path) -> Kept:
    """A section's data: as they are kept, if measuring again would give the same."""
    path = report_path(out, section, context.scale, context.seeds)
    if (kept := read(path, section, context.store, at=context.at)) is not None:
        return kept
    data = section.measure(context)
    keep(path, section, data)
    return Kept(data, section.version)


def _more_seeds(sections: Iterable[Section], seeds: int) -> dict[str, int]:
    """The sections whose claims take more seeds to decide, and can be given them."""
    return {s.id: s.quick_seeds for s in sections if s.quick_seeds > seeds}


def _path(folder: Path, section: Section, head: dict[str, Any]) -> Path:
    seeds = head["more_seeds"].get(section.id, head["seeds"])
    return report_path(folder, section, head["scale"], seeds)


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


def _read_head(folder: Path) -> tuple[dict[str, Any], list[Section]]:
    """What ``claims.json`` begins with, and the sections that were asked for."""

    def read_head(whole: Any) -> tuple[dict[str, Any], list[Section]]:
        written = [entry.name for entry in fields(_Head) if entry.name in whole]
        head: _Head = from_plain(_Head, {name: whole[name] for name in written})
        check_whole("seeds", head.seeds, at_least=1)
        only = whole["check"]["sections"] if head.scale == CHECK else head.only
        return to_plain(head), _choose(from_plain(list[str] | None, only), CHECK)

    found = read_document(folder / "claims.json", read_head)
    if found is None:
        raise InputError(
            f"there is no report in {folder}: make one with `noisescale paper --out {folder}`."
        )
    return found


def _choose(only: Iterable[str] | None, scale: str) -> list[Section]:
    """The sections asked for, in the report's order."""
    if only is None:
        return [s for s in SECTIONS.values() if scale in ("full", CHECK) or not s.reading]
    wanted = [name.strip() for name in only]
    for name in wanted:
        if name not in SECTIONS:
            raise InputError(f"there is no section {name!r}: choose from {', '.join(SECTIONS)}.")
    return [section for section in SECTIONS.values() if section.id in wanted]


def _prepare(out: Path) -> None:
    """Make the folder before the work begins: an hour's runs must not end in a bad path."""
    check_page(out / "index.html")
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {out} ({error.strerror}): choose another --out."
        ) from None


def _judge_shipped(
    out: Path, sections: Sequence[Section], progress: Progress, check: SpotCheck | None = None
) -> PaperReport:
    """Judge and draw what ships of the sections, and write the page, with the check so far."""
    began = time.perf_counter()
    circumstances = [kept.data.at for s in sections if (kept := shipped(s)) is not None]
    if not circumstances:
        raise InputError(
            "no full-scale data of these sections ship with this noisescale: measure them, "
            "`noisescale paper --scale quick`."
        )
    full = full_scale(sections, progress)
    at = circumstances[0]
    head = {
        "schema": CLAIMS_SCHEMA,
        "version": __version__,
        "scale": CHECK,
        "data": {
            "name": at.data,
            "source": "shipped with noisescale",
            "complete": at.complete,
            "fingerprint": at.fingerprint,
        },
        "seeds": min(each.seeds for each in circumstances),
        "seconds": round(time.perf_counter() - began, 1),
        "check": {"sections": [section.id for section in sections]} | _summary(check),
    }
    figures = _write_figures(out, full.values())
    return _write_check_page(out, head | figures | verdicts_of(full), full, check)


def _summary(check: SpotCheck | None) -> dict[str, Any]:
    """The check, for ``claims.json``."""
    if check is None:
        return {"conclusion": None, "told": "not checked yet"}
    return {
        "conclusion": check.conclusion,
        "told": str(check),
        "seed": check.seed,
        "minutes": check.minutes,
        "seconds": check.seconds,
    }


def _check_path(folder: Path) -> Path:
    return folder / "measured" / "spot-check.json"


def _read_check(folder: Path, sections: Sequence[Section]) -> SpotCheck | None:
    """The check that the folder keeps, if it is one of these sections and of what ships now."""
    kept: _KeptCheck | None = read_document(
        _check_path(folder), lambda plain: from_plain(_KeptCheck, plain)
    )
    if kept is None or kept.version != __version__:
        return None
    return kept.check if kept.sections in (None, [section.id for section in sections]) else None


def _write_check_page(
    out: Path, claims: dict[str, Any], full: dict[str, Shown], check: SpotCheck | None
) -> PaperReport:
    """Write the page of what ships; a store is opened only if runs were kept in one."""
    runs = ""
    if store_path(out).exists():
        with RunStore(out) as store:
            runs = runs_table(store)
    return _write_report(out, claims, {}, full, claims, runs, check)


def _write(
    out: Path,
    head: dict[str, Any],
    here: dict[str, Shown],
    store: RunStore,
    progress: Progress,
) -> PaperReport:
    """Judge and draw what ships of what was measured here, and write the page."""
    progress.line("full-scale results")
    asked = SECTIONS if head["only"] is None else head["only"]
    full = full_scale(SECTIONS[name] for name in asked)
    claims = head | _write_figures(out, here.values()) | verdicts_of(here)
    return _write_report(out, claims, here, full, verdicts_of(full), runs_table(store))


def _write_figures(out: Path, judged: Iterable[Shown]) -> dict[str, list[str]]:
    """Write the pictures, and remove those that an earlier report wrote; ``claims.json`` has which.

    What else lies in the folder is not ours.
    """
    drawn = {picture.name: picture for shown in judged for picture in shown.pictures}
    try:
        earlier = read_document(
            out / "claims.json", lambda whole: from_plain(list[str], whole["figures"])
        )
    except InputError:  # of an earlier version, or damaged: written anew in a moment
        earlier = None
    for name, picture in drawn.items():
        write_whole(out / "figures" / f"{name}.svg", picture.svg, make_folder=True)
    for path in (out / "figures").glob("*.svg"):
        if path.stem in (earlier or ()) and path.stem not in drawn:
            path.unlink()
    return {"figures": sorted(drawn)}


def _write_report(
    out: Path,
    claims: dict[str, Any],
    here: dict[str, Shown],
    full: dict[str, Shown],
    known: dict[str, Any],
    runs: str,
    check: SpotCheck | None = None,
) -> PaperReport:
    """Write ``claims.json`` and the page; ``known`` are the verdicts of ``full``."""
    text = json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(out / "claims.json", text + "\n")
    index = out / "index.html"
    write_page(index, render(claims, here, full, known, SECTIONS.values(), runs, check))
    measured = [j for one in full.values() for j in one.judgements]
    verdicts = {j.id: j.verdict.value for j in measured if j.primary}
    read = [row for row in known["readings"] if row["measured"] is not None]
    return PaperReport(index, claims, verdicts | verdicts_on(read), check)


def verdicts_of(shown: Mapping[str, Shown]) -> dict[str, Any]:
    """Claims and second readings of what was judged, as ``claims.json`` has."""
    judged = entries(j for one in shown.values() for j in one.judgements)
    readings = reading_entries(j for one in shown.values() for j in one.findings.readings)
    return {
        "claims": judged,
        "readings": readings,
        "meanings": meanings(judged, readings),
    }


@cache
def shown_at_full_scale(section: Section) -> Shown | None:
    """What ships of a section, judged and drawn; None if nothing does."""
    return None if (kept := shipped(section)) is None else Shown.of(section, kept)


def full_scale(
    sections: Iterable[Section] = SECTIONS.values(), progress: Progress | None = None
) -> dict[str, Shown]:
    """What ships of the sections, judged and drawn once, by section."""
    full = {}
    for section in sections:
        known = shown_at_full_scale.cache_info().hits
        if (one := shown_at_full_scale(section)) is not None:
            full[section.id] = one
            if progress is not None and shown_at_full_scale.cache_info().hits == known:
                progress.line(f"{section.title}: judged and drawn from what ships")
    return full
