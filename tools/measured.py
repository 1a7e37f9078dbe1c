"""Passages of the pages that come from measurements, written from what is shipped.

    python tools/measured.py            # says which passages are not what is shipped
    python tools/measured.py --write    # puts them there, and draws their pictures

A passage stands between ``<!-- measured: NAME -->`` and ``<!-- end -->``.
"""

import hashlib
import json
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from betting_passages import PASSAGES as BETS
from deep_evidence_passage import beside_peers_passage
from pytorch_passage import pytorch_passage
from verdict_passages import PASSAGES as VERDICTS

from noisescale.drawing import house_style
from noisescale.paper.claims import Judgement
from noisescale.paper.law import UNCALIBRATED, Data, judge, judge_long_runs
from noisescale.paper.law import predicted_against_measured as drawn
from noisescale.paper.law_cases import Prediction, read_predictions
from noisescale.paper.law_outcomes import Outcome, Slope, slope_at
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import folder, shipped, shipped_path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "law.png"
_PASSAGE = re.compile(r"<!-- measured: (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def law_data() -> Data | None:
    """What the law's section measured; None while it is not shipped."""
    kept = shipped(SECTIONS["law"])
    return None if kept is None else kept.data  # type: ignore[return-value]


def law_passage() -> str:
    """The predictions, and what came out, as docs/batch-size.md has them."""
    data = law_data()
    if data is None:
        rows = [(p, None) for p in read_predictions()]
        return _table(rows)
    judged = {j.id: j for j in (*judge(data).judgements, judge_long_runs(data))}
    parts = [_wrapped(" ".join(_law_sentences(data, judged)))]
    parts.append(
        "![Best batch sizes measured after they were predicted, against the predictions, with "
        f"95 % intervals on both]({PICTURE.name})"
    )
    parts.append(_table([(o.prediction, o) for o in data.outcomes if o.prediction is not None]))
    return "\n\n".join(parts)


def _law_sentences(data: Data, judged: dict[str, Judgement]) -> list[str]:
    told = []
    outcomes = [o for o in data.outcomes if o.case.role == "judged" and o.prediction is not None]
    misses = [o.miss for o in outcomes if o.miss is not None]
    near = sum(miss <= 1.5 for miss in misses)
    told.append(
        f"On MNIST {near} of {len(misses)} predictions are within a factor of 1.5 of what was "
        f"measured, and the largest factor is {max(misses):.2f} (C45: {judged['C45'].verdict})."
    )
    tops = [
        o.peak.corrected.value / o.prediction.value
        for o in outcomes
        if o.prediction is not None and o.peak.corrected is not None
    ]
    told.append(
        f"Of their tops, resolved or not, {sum(top < 1 for top in tops)} lie below and "
        f"{sum(top >= 1 for top in tops)} above what was predicted, by a factor of "
        f"{max(max(top, 1 / top) for top in tops):.2f} at the most."
    )
    told.append(UNCALIBRATED)
    for steps in (5_000, 40_000):
        if (slope := slope_at(data.outcomes, steps)) is not None:
            told.append(_slope_sentence(slope))
    if (long := judged["R20"]).measured is not None:
        told.append(f"R20, which asks for 20 of both ratios at 40,000 updates: {long.verdict}.")
    return told


def _slope_sentence(slope: Slope) -> str:
    by_slope, by_size = (
        f"{_digits(ratio)} times likelier under the law than under slope 1"
        if ratio >= 1
        else f"{_digits(1 / ratio)} times likelier under slope 1 than under the law"
        for ratio in (slope.likelihood_ratio, slope.likelihood_ratio_of_sizes)
    )
    return (
        f"With {slope.steps:,} updates the slope of ln B_opt against ln N is {slope.measured}, "
        f"predicted {slope.predicted:.2f} (of its {slope.measured.n} peaks {slope.unresolved} not "
        f"resolved): {by_slope}, and the sizes themselves, with slope 1 at the height that fits "
        f"best, {by_size}."
    )


def _digits(ratio: float) -> str:
    """Two digits: errors come from few seeds."""
    return f"{float(f'{ratio:.2g}'):,g}"


def _table(rows: list[tuple[Prediction, Outcome | None]]) -> str:
    lines = [
        "| data | ε | m | N | T | predicted | binds | measured | factor |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for said, outcome in rows:
        case = said.case
        where = "MNIST"
        if case.role == "reported":
            where += f", width {case.hidden_widths[0]} (not judged)"
        found = "not yet" if outcome is None else outcome.measured
        miss = "" if outcome is None or outcome.miss is None else f"{outcome.miss:.2f}"
        lines.append(
            f"| {where} | {case.at['learning_rate']:g} | {case.momentum:g} | {case.n_train:,} "
            f"| {case.steps:,} | {said.value:.3g} [{said.low:.3g}, {said.high:.3g}] "
            f"| {said.branch} | {found} | {miss} |"
        )
    return "\n".join(lines)


def law_in_short() -> str:
    """A sentence for docs/noise.md."""
    data = law_data()
    if data is None:
        return "Its predictions for other settings are written down; the runs are still to come."
    (judged,) = (j for j in judge(data).judgements if j.id == "C45")
    near, largest = judged.measured.values()
    return _wrapped(
        f"Before anything else was run it predicted nine other settings: {near} came out within a "
        f"factor of 1.5, the largest factor was {largest:.2f} "
        "([predicted against measured](batch-size.md#what-came-out))."
    )


def law_source() -> str:
    """Of which data the picture is."""
    place = folder()
    assert place is not None
    path = shipped_path(place, SECTIONS["law"])
    return f"results/sections/{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def draw_law(data: Data, path: Path) -> None:
    """Predicted against measured, as a picture that says which data it is of."""
    with house_style():
        figure = drawn([o for o in data.outcomes if o.prediction is not None])
    figure.savefig(path, dpi=110, metadata={"Source": law_source()})


def bench(name: str) -> dict[str, Any]:
    """A benchmark's results."""
    path = RESULTS / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def tuner_passage() -> str:
    """Tuner, random search and TPE at equal budgets, for docs/tuning.md."""
    document = bench("tune")
    said = _wrapped(
        f"At equal budgets of updates (`benchmarks/tune.py`: a {document['network']} network, "
        f"N = {document['n_train']:,}, {document['epochs']:g} epochs, test accuracy over five "
        "fresh seeds, mean and standard deviation over repeats):"
    )
    lines = [
        "| method | repeats | test accuracy | batch sizes | updates of its recipe | spent |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in document["summary"].items():
        if name == "tuner":
            name = f"tuner with a margin of {document['margin']:g}"
        spread = "" if row["spread"] is None else f" ({row['spread']:.4f})"
        unsure = f", {row['inconclusive']} inconclusive" if row["inconclusive"] else ""
        lines.append(
            f"| {name} | {row['repeats']}{unsure} | {row['test_accuracy']:.4f}{spread} "
            f"| {', '.join(map(str, row['batch_sizes']))} | {row['median_updates_a_run']:g} "
            f"| {row['median_updates']:,g} |"
        )
    return f"{said}\n\n" + "\n".join(lines)


def tune_level_passage() -> str:
    """How often a comparison errs and succeeds, before and now, for docs/tuning.md."""
    lines = [
        "| rule | usual spread | accepts a loss of the tolerance | accepts no loss: tolerance 1 sd "
        "| tolerance 2 sd |",
        "|---|---|---|---|---|",
    ]
    usual = {0.0: "not known", 0.5: "half the truth", 1.0: "right", 2.0: "twice the truth"}
    for row in bench("tune_level")["rows"]:
        power = (f"{row[f'power {t}']:.1%} ({row[f'seeds {t}']:.1f} seeds)" for t in (1, 2))
        lines.append(
            f"| {row['rule']} | {usual[row['usual']]} | {row['level']:.1%} | {' | '.join(power)} |"
        )
    return "\n".join(lines)


def starts_passage() -> str:
    """What ``start=`` saves, for docs/tuning.md."""
    rows = bench("tune")["starts"]
    if not rows:
        return "`benchmarks/tune.py` measures what each saves."
    lines = [
        "| data | start | near | first best | final batch | updates spent |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        near = "" if row["near"] is None else f"{row['near']:.3g}"
        final = f"{row['batch_size']}{', inconclusive' if row['inconclusive'] else ''}"
        lines.append(
            f"| {row['data']} | {row['start']} | {near} | {row['first']} | {final} "
            f"| {row['updates']:,} |"
        )
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 108, break_long_words=False, break_on_hyphens=False))


PASSAGES: dict[str, Callable[[], str]] = {
    "law": law_passage,
    "law-in-short": law_in_short,
    "tuner": tuner_passage,
    "starts": starts_passage,
    "tune-level": tune_level_passage,
    "pytorch": pytorch_passage,
    **BETS,
    "beside-peers": lambda: _wrapped(beside_peers_passage()),
    **VERDICTS,
}


def written(text: str) -> str:
    """A page with its passages as they should be."""

    def passage(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- measured: {name} -->\n{PASSAGES[name]()}\n<!-- end -->"

    return _PASSAGE.sub(passage, text)


def main() -> None:
    wrong = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        old = page.read_text(encoding="utf-8")
        if (new := written(old)) != old:
            wrong.append(page)
            if "--write" in sys.argv:
                page.write_text(new, encoding="utf-8")
    if "--write" in sys.argv and (data := law_data()) is not None:
        draw_law(data, PICTURE)
    for page in wrong:
        print(f"{page}: {'written' if '--write' in sys.argv else 'not what is shipped'}")
    if wrong and "--write" not in sys.argv:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
