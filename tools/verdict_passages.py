"""The passages of docs/paper.md that say how claims and their readings were judged."""

import textwrap
from functools import cache
from typing import Any

from noisescale.paper.bets import SIZES
from noisescale.paper.claims import Verdict, all_claims, counts, headline
from noisescale.paper.readings import all_readings
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped
from noisescale.paper.stages import full_scale, verdicts_of
from noisescale.uncertainty import mean_of


@cache
def judged() -> dict[str, Any]:
    """Their verdicts."""
    return verdicts_of(full_scale())


def told(row: dict[str, Any]) -> str:
    """A verdict, or that there is none because nothing is shipped."""
    return str(row["verdict"].value) if row["measured"] is not None else "not measured"


def headline_passage() -> str:
    """How many hold."""
    rows = judged()["claims"]
    seen = counts(rows)
    seeds: dict[int, list[str]] = {}
    for section in SECTIONS.values():
        if (kept := shipped(section)) is not None:
            seeds.setdefault(kept.data.at.seeds, []).append(section.id)
    listed = "; ".join(f"{n} for {', '.join(names)}" for n, names in sorted(seeds.items()))
    everywhere = f"{next(iter(seeds), 0)} seeds everywhere"
    by_seeds = everywhere if len(seeds) == 1 else f"Seeds by section: {listed}"
    told = (
        f"**{seen[Verdict.REPRODUCED]} reproduced, {seen[Verdict.NOT_REPRODUCED]} not reproduced, "
        f"{seen[Verdict.UNDECIDED]} open**: {headline(rows)}. {by_seeds}."
    )
    return "\n".join(textwrap.wrap(told, 108))


def claims_passage() -> str:
    """A line a claim of the paper's."""
    return _table(("claim", "section", "the paper says", "verdict"), own=False)


def own_passage() -> str:
    """A line a claim of our own."""
    return _table(("claim", "section", "we say", "verdict"), own=True)


def _table(head: tuple[str, ...], *, own: bool) -> str:
    verdicts = {row["id"]: told(row) for row in judged()["claims"] if row["primary"]}
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---|"]
    for claim in all_claims():
        if claim.own == own:
            mark = {"": "", "all": " *(identity)*"}.get(
                claim.identity, f" *(identity: {claim.identity})*"
            )
            lines.append(
                f"| {_anchored(claim.id)} | {claim.section} | {claim.claim}{mark} "
                f"| {verdicts[claim.id]} |"
            )
    return "\n".join(lines)


def _anchored(name: str) -> str:
    """An id that links go to."""
    return f'<a id="{name.lower()}"></a>{name}'


def links_passage() -> str:
    """Where [C01] and [R14] in the text go."""
    names = [one.id for one in (*all_claims(), *all_readings())]
    return "\n".join(f"[{name}]: #{name.lower()}" for name in names)


def readings_passage() -> str:
    """For each claim that has readings: both verdicts, and what they mean."""
    anchored: set[str] = set()

    def label(name: str) -> str:
        new = name not in anchored
        anchored.add(name)
        return _anchored(name) if new else name

    lines = ["| claim | first verdict | reading | what is now believed |", "|---|---|---|---|"]
    for row in judged()["meanings"]:
        seen = ", ".join(f"{label(name)}: {verdict}" for name, verdict in row["readings"].items())
        lines.append(f"| {row['id']} | {row['verdict']} | {seen} | {row['meaning']} |")
    return "\n".join(lines)


def figure_11_passage() -> str:
    """What figure 11 measured, in three tables; nothing while it is not shipped."""
    kept = shipped(SECTIONS["11"])
    if kept is None:
        return ""
    data: Any = kept.data
    size = SIZES[data.at.scale]

    def at(points: list[Any], labels: str, prior: float) -> str:
        chosen = [m for m in points if (m.labels, m.prior_precision) == (labels, prior)]
        short = sum(m.status != "map" for m in chosen)
        left = max(m.left for m in chosen)
        note = f"; {short} of {len(chosen)} end with {left:.2g} nats left" if short else ""
        return f"{mean_of([m.E for m in chosen])}{note}"

    priors = [f"prior {prior:g}" for prior in size.precisions]
    rows = [
        [f"{labels} labels", *(at(data.maps, labels, prior) for prior in size.precisions)]
        for labels in ("true", "random")
    ]
    full = f"{mean_of([m.E for m in data.large])}"
    rows.append(["true labels, from the full batch", full, *[""] * (len(priors) - 1)])
    maps = _rows(["E at the MAP, B = 30", *priors], rows)
    bets = [
        [
            "all" if size.ladder[-1] == B else f"{B}",
            *(
                f"{mean_of([getattr(b, name) for b in data.bets if b.batch_size == B])}"
                for name in ("E", "last_loss", "test_accuracy")
            ),
        ]
        for B in size.ladder
    ]
    random = mean_of([b.E for b in data.random_bets])
    bets.append(["30, random labels", f"{random}", "", ""])
    heads = ["prequential, B", "E", "last block, nats an example", "test accuracy"]
    sampled = []
    for labels in ("true", "random"):
        for prior in size.precisions:
            pairs = data.pairs(labels, prior)
            E, gap = mean_of([s.E for _, s in pairs]), mean_of([m.E - s.E for m, s in pairs])
            sampled.append([f"{labels} labels", f"{prior:g}", f"{E}", f"{gap}"])
    sampling = _rows(
        ["784-100-10, N = 200", "prior", "E sampled, at most", "E at the MAP minus that"], sampled
    )
    judgements = {row["id"]: row for row in judged()["claims"] if row["primary"]}
    said = "; ".join(
        f"{name}, {judgements[name]['claim']}: {told(judgements[name])}"
        for name in ("C41", "C42", "C43", "C44")
    )
    said = "\n".join(textwrap.wrap(f"Five seeds, mean ± standard error. {said}.", 108))
    return "\n\n".join([said, maps, _rows(heads, bets), sampling])


def _rows(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PASSAGES = {
    "figure-11": figure_11_passage,
    "headline": headline_passage,
    "claims": claims_passage,
    "own-claims": own_passage,
    "claim-links": links_passage,
    "readings": readings_passage,
}
