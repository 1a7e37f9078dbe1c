"""Results in a notebook: the answer, a small picture, and every number that ``to_dict`` has.

Everything from data is escaped, and no colour is set but that of the text around, so that it reads
on light and on dark alike.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from noisescale.text import printable

_STYLE = """<style>
.noisescale{line-height:1.4}
.noisescale table{border-collapse:collapse;margin:.4em 0;font-variant-numeric:tabular-nums}
.noisescale th,.noisescale td{padding:.15em .8em .15em 0;text-align:left;vertical-align:top;
background:none;border:0;border-bottom:1px solid rgba(128,128,128,.35)}
.noisescale p,.noisescale ul{margin:.3em 0}.noisescale summary{cursor:pointer}
</style>"""
# What answers the question, before everything else.
_ANSWERS = ("withheld", "inconclusive", "verdict", "conclusion", "undetermined", "sentences")
_SHORT = 12  # rows that are shown without being asked for
_LONGEST = 60  # rows of a table, evenly spread over it


class Displayed:
    """A result that notebooks show by its ``to_dict``, and by its ``plot`` if it has one."""

    def _repr_html_(self) -> str:
        return to_html(self)

    def _headline(self) -> str:
        return repr(self).splitlines()[0]

    def _sketched(self) -> bool:
        """Whether a picture helps."""
        return hasattr(self, "plot")


def to_html(result: Any) -> str:
    """The result as a fragment of HTML."""
    content: dict[str, Any] = dict(result.to_dict())
    headline = result._headline()
    given = [content.pop(name, None) for name in _ANSWERS]
    answers = [*filter(None, given[:-1]), *(given[-1] or ())]
    notes = content.pop("notes", None) or ()
    content = {name: value for name, value in content.items() if value not in (None, *answers)}
    parts = [f"<p><b>{escape(headline)}</b></p>"]
    parts += [f"<p>{escape(told)}</p>" for told in answers if told not in headline]
    if result._sketched():
        from noisescale.drawing import sketch

        parts.append(sketch(result.plot, headline))
    parts += _body(content)
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{escape(str(note))}</li>' for note in notes)}</ul>")
    return printable(f'<div class="noisescale">{_STYLE}{"".join(parts)}</div>')


def _body(content: Mapping[str, Any]) -> Iterator[str]:
    """Single values as one table, then what is longer: as tables of their own."""
    single = {name: _cell(value) for name, value in content.items() if _is_single(value)}
    if single:
        rows = "".join(
            f'<tr><th scope="row">{escape(str(name))}</th><td>{cell}</td></tr>'
            for name, cell in single.items()
        )
        yield f"<table>{rows}</table>"
    yield from _columns({name: value for name, value in content.items() if _is_column(value)})
    for name, value in content.items():
        if _is_single(value) or _is_column(value):
            continue
        if isinstance(value, Mapping):
            yield _folded(str(name), "".join(_body(value)))
        elif value and all(isinstance(row, Mapping) for row in value):
            columns = {key: [row.get(key) for row in value] for key in value[0]}
            yield _table(str(name), columns)
        elif value:
            yield _folded(str(name), "<br>".join(map(_cell, _spread(value))))


def _columns(lists: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Lists of one length side by side."""
    for length in dict.fromkeys(map(len, lists.values())):
        if length:
            alike = {name: column for name, column in lists.items() if len(column) == length}
            yield _table(", ".join(alike), alike)


def _table(name: str, columns: Mapping[str, Sequence[Any]]) -> str:
    n_rows = len(next(iter(columns.values())))
    head = "".join(f'<th scope="col">{escape(str(column))}</th>' for column in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>"
        for row in zip(*(_spread(column) for column in columns.values()), strict=True)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    if n_rows <= _SHORT:
        return table
    shown = f"{n_rows} rows" if n_rows <= _LONGEST else f"some of {n_rows} rows"
    return _folded(f"{name}: {shown}", table)


def _folded(name: str, body: str) -> str:
    return f"<details><summary>{escape(name)}</summary>{body}</details>" if body else ""


def _spread(column: Sequence[Any]) -> Sequence[Any]:
    """At most ``_LONGEST`` of a column, the last among them."""
    every = max(1, -(-len(column) // _LONGEST))
    return list(column)[::-every][::-1]


def _is_single(value: Any) -> bool:
    return not isinstance(value, (Mapping, list, tuple)) or _is_estimate(value)


def _is_estimate(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"value", "std", "low", "high", "n"}


def _is_column(value: Any) -> bool:
    """A list of single values."""
    return isinstance(value, (list, tuple)) and all(map(_is_single, value))


def _cell(value: Any) -> str:
    """A value as people read it."""
    if _is_estimate(value):
        from noisescale.uncertainty import Estimate

        known: dict[str, Any] = {
            name: math.nan if part is None else part for name, part in value.items()
        }
        return escape(str(Estimate(**known)))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))
