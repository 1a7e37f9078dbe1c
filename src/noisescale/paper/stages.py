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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from noisescale._version import __version__
from noisescale.checks import check_choice, check_number, check_whole
from noisescale.data import load_mnist
from noisescale.errors import InputError
from noisescale.jobs.engines import LazyEngine, open_engine
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore
from noisescale.paper.checking import SpotCheck, check_shipped
from noisescale.paper.claims import entries
from noisescale.paper.documents import Kept, keep, measured_alike, read, report_path
from noisescale.paper.keeping import (
    from_plain,
    read_document,
    to_plain,
    write_document,
    write_whole,
)
from noisescale.paper.readings import meanings, reading_entries, verdicts_on
from noisescale.paper.report import Shown, render, runs_table
from noisescale.paper.second import second_statistics
from noisescale.paper.section import SCALES, Context, ScaleName, Section
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped

CLAIMS_SCHEMA = 1
MINUTES = 5.0  # of a spot check
CHECK: Literal["check"] = (
    "check"  # the scale at which shipped data are judged, and a sample of them is run again
)
_SEEDS = {"smoke": 1, "quick": 2, "full": 5}
_HEAD = ("schema", "version", "scale", "data", "seeds", "seconds")


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
    minutes: float = MINUTES,
    check_seed: int | None = None,
    workers: int | None = None,
    executor: Any = None,
    progress: Progress | None = None,
) -> PaperReport:
    """Write the report on the sections asked for into the folder ``out``.

    At the scale ``"check"`` the full-scale data that ship with noisescale are judged and drawn and
    the report is written; then a random sample of these data is measured again, for ``minutes`` at
    the most (0 for none), chosen by ``check_seed`` (the clock if None), and the report is written
    with what came of it. The other scales measure afresh, with ``seeds`` seeds: runs are kept in
    ``out/runs.sqlite``, what else was measured in ``out/measured``, and an interrupted report goes
    on from there. ``workers`` and ``executor`` are those of :func:`noisescale.run_sweep`.
    """
    check_choice("scale", scale, (CHECK, *SCALES))
    sections = _choose(only, scale)
    n_seeds = check_whole("seeds", _SEEDS.get(scale, 1) if seeds is None else seeds, at_least=1)
    minutes = check_number("minutes", minutes, "from 0 to 1440", lambda v: 0 <= v <= 1440)
    if check_seed is not None:
        check_seed = check_whole("check_seed", check_seed, at_least=0)
    if scale == CHECK and seeds is not None:
        raise InputError(
            f"the scale check measures no seeds afresh, got seeds = {seeds}: give a scale to "
            f"measure at ({', '.join(SCALES)}), or leave them out."
        )
    _prepare(out)
    progress = progress or Progress()
    began = time.perf_counter()
    with ExitStack() as closing:
        store = closing.enter_context(RunStore(out, write=True))
        engine = LazyEngine(lambda: open_engine(executor, workers=workers))
        closing.callback(engine.stop)
        if scale == CHECK:
            made = _judge_shipped(out, sections, store, progress)
            if minutes == 0:
                return made
            seed = time.time_ns() % 1_000_000 if check_seed is None else check_seed
            check = check_shipped(
                sections, minutes=minutes, seed=seed, engine=engine, progress=progress, keep=store
            )
            made = _judge_shipped(out, sections, store, progress, check)
            if check.interrupted:
                raise KeyboardInterrupt
            return made
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
            "more_seeds": more,
            "seconds": round(time.perf_counter() - began, 1),
        }
        return _write(out, head, measured, store, progress)


def redraw(folder: Path, progress: Progress | None = None) -> PaperReport:
    """Write the report of ``folder`` again from what was measured there; nothing is run.

    A section that another version measured is shown as such.
    """
    head = _read_head(folder)
    progress = progress or Progress()
    progress.line("reading what was measured")
    with RunStore(folder) as store:
        if head["scale"] == CHECK:
            sections = _choose(head["sections"], CHECK)
            return _judge_shipped(folder, sections, store, progress, _read_check(folder))
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


def _read_head(folder: Path) -> dict[str, Any]:
    path = folder / "claims.json"
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        content = {name: whole[name] for name in _HEAD}
        content["more_seeds"] = dict(whole.get("more_seeds", {}))
        check_choice("scale", content["scale"], (CHECK, *SCALES))
        check_whole("seeds", content["seeds"], at_least=1)
        if content["scale"] == CHECK:
            content["sections"] = list(whole["check"]["sections"])
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
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {out} ({error.strerror}): choose another --out."
        ) from None


def _judge_shipped(
    out: Path,
    sections: Sequence[Section],
    store: RunStore,
    progress: Progress,
    check: SpotCheck | None = None,
) -> PaperReport:
    """Judge and draw what ships of the sections, and write the page, with the check so far."""
    began = time.perf_counter()
    circumstances = [kept.data.at for s in sections if (kept := shipped(s)) is not None]
    if not circumstances:
        raise InputError(
            "no full-scale data of these sections ship with this noisescale: measure them, "
            "`noisescale paper --scale quick`."
        )
    full = {}
    for section in sections:
        known = shown_at_full_scale.cache_info().hits
        if (shown := shown_at_full_scale(section)) is not None:
            full[section.id] = shown
            if shown_at_full_scale.cache_info().hits == known:
                progress.line(f"{section.title}: judged and drawn from what ships")
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
    if check is None:  # an earlier one is not this report's
        _check_path(out).unlink(missing_ok=True)
    else:
        write_document(_check_path(out), {"check": to_plain(check)})
    return _write_report(out, head, full, {}, full, store, check)


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


def _read_check(folder: Path) -> SpotCheck | None:
    document = read_document(_check_path(folder), {"check"})
    try:
        return None if document is None else from_plain(SpotCheck, document["check"])
    except (KeyError, TypeError, ValueError):  # of another version
        return None


def _write(
    out: Path,
    head: dict[str, Any],
    measured: list[tuple[Section, Kept]],
    store: RunStore,
    progress: Progress,
) -> PaperReport:
    """Judge and draw what was measured here and what ships, and write the page."""
    here = {section.id: Shown.of(section, kept) for section, kept in measured}
    progress.line("full-scale results")
    return _write_report(out, head, here, here, full_scale(), store)


def _write_report(
    out: Path,
    head: dict[str, Any],
    judged: dict[str, Shown],
    here: dict[str, Shown],
    full: dict[str, Shown],
    store: RunStore,
    check: SpotCheck | None = None,
) -> PaperReport:
    """Write the verdicts and pictures of ``judged``, and the page."""
    claims = head | verdicts_of(judged)
    for shown in judged.values():
        for picture in shown.pictures:
            write_whole(out / "figures" / f"{picture.name}.svg", picture.svg)
    text = json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(out / "claims.json", text + "\n")
    index = out / "index.html"
    known = verdicts_of(full)
    page = render(claims, here, full, known, SECTIONS.values(), runs_table(store), check)
    write_whole(index, page)
    measured = [j for one in full.values() for j in one.judgements]
    verdicts = {j.id: j.verdict.value for j in measured if j.primary}
    read = [row for row in known["readings"] if row["measured"] is not None]
    return PaperReport(index, claims, verdicts | verdicts_on(read), check)


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
def shown_at_full_scale(section: Section) -> Shown | None:
    """What ships of a section, judged and drawn; None if nothing does."""
    return None if (kept := shipped(section)) is None else Shown.of(section, kept)


@cache
def full_scale() -> dict[str, Shown]:
    """What ships with noisescale, judged and drawn, by section."""
    shown = ((section.id, shown_at_full_scale(section)) for section in SECTIONS.values())
    return {name: one for name, one in shown if one is not None}
