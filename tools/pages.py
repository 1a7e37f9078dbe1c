"""The documentation's code runs, and what a page shows under it is what it prints.

    python tools/pages.py [PAGE ...]            # says where a page shows something else
    python tools/pages.py --write [PAGE ...]    # and puts there what was printed

The Python of a page runs from top to bottom in one namespace. A ``text`` block right below a block
of code is its output; below lines that begin with ``noisescale``, that of those commands. Whole
numbers must agree, others to a unit of their last digit or a thousandth. A comment on the line
above a block says where that is too much to ask, and why:

    <!-- not run: REASON -->
    <!-- within 5 %: REASON -->             numbers may be so far apart
    <!-- except /PATTERN/: REASON -->       what matches is not compared
"""

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from noisescale.cli import main as main_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
_MARK = re.compile(r"not run: .+|within (?P<percent>[\d.]+) %: .+|except /(?P<pattern>.+)/: .+")


@dataclass(frozen=True)
class Example:
    """A block of code in a page, with the output that the page shows for it, if any."""

    language: str
    code: str
    line: int
    marks: tuple[str, ...]
    shown: re.Match[str] | None

    @property
    def runs(self) -> bool:
        if any(mark.startswith("not run") for mark in self.marks):
            return False
        return self.language == "python" or (self.shown is not None and bool(self.commands))

    @property
    def commands(self) -> list[list[str]]:
        lines = [] if self.language not in ("", "sh") else self.code.splitlines()
        return [
            shlex.split(line, comments=True)[1:] for line in lines if line[:11] == "noisescale "
        ]

    def run(self, namespace: dict[str, object]) -> str:
        """What it prints."""
        if self.language == "python":
            namespace.setdefault("__name__", "__main__")  # as in a script or a notebook
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * self.line + self.code, "<page>", "exec"), namespace)
            return printed.getvalue()
        return "".join(map(_printed, self.commands))

    def differs(self, printed: str) -> str | None:
        """How ``printed`` differs from what the page shows; None if it does not."""
        if self.shown is None:
            return f"nothing where {printed.strip()!r} is printed" if printed.strip() else None
        return difference(self.shown["text"], printed, self.marks)


def _printed(words: list[str]) -> str:
    """What a command prints, called in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            main_command(words)
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"noisescale {shlex.join(words)}: exit {ended.code}") from None
    return printed.getvalue()


def examples(text: str) -> Iterator[Example]:
    """The blocks of code in a page, in order."""
    fences = list(_FENCE.finditer(text))
    for fence, after in zip_longest(fences, fences[1:]):
        if fence["language"] == "text":
            continue
        shown = None
        if after and after["language"] == "text" and not text[fence.end() : after.start()].strip():
            shown = after
        marks = [match["mark"] for match in (fence, shown) if match and match["mark"]]
        for mark in marks:
            if not _MARK.fullmatch(mark):
                raise ValueError(f"<!-- {mark} --> says nothing that tools/pages.py knows")
        line = text[: fence.start("text")].count("\n")
        yield Example(fence["language"], fence["text"], line, tuple(marks), shown)


def orphans(text: str) -> list[str]:
    """Outputs that stand below no code and do not say why nothing is run for them."""
    owned = {example.shown.start() for example in examples(text) if example.shown and example.runs}
    return [
        fence["text"]
        for fence in _FENCE.finditer(text)
        if fence["language"] == "text"
        and fence.start() not in owned
        and not (fence["mark"] or "").startswith("not run: ")
    ]


def difference(shown: str, printed: str, marks: tuple[str, ...] = ()) -> str | None:
    """The first place where two outputs differ; None if they agree."""
    within = None
    for mark in marks:
        said = _MARK.fullmatch(mark)
        if said and said["percent"]:
            within = float(said["percent"]) / 100
        if said and said["pattern"]:
            shown, printed = (re.sub(said["pattern"], "", text) for text in (shown, printed))
    words = [re.split(r"\s+", _NUMBER.sub(" # ", text).strip()) for text in (shown, printed)]
    if words[0] != words[1]:
        pairs = enumerate(zip_longest(*words))
        there = next(place for place, (old, new) in pairs if old != new)
        old, new = (" ".join(text[there : there + 12]) for text in words)
        return f"{old!r} where {new!r} is printed"
    for old, new in zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True):
        a, b = (float(number.replace(",", "").replace("−", "-")) for number in (old, new))
        if abs(a - b) > _tolerance(old, max(abs(a), abs(b)), within):
            return f"{old} where {new} is printed"
    return None


def _tolerance(number: str, size: float, within: float | None) -> float:
    digits, _, exponent = number.partition("e")
    if "." not in digits and not exponent:
        return (within or 0) * size
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return max(1.01 * unit, (within or 1e-3) * size)


def main(arguments: list[str]) -> int:
    write = "--write" in arguments
    pages = [Path(name) for name in arguments if name != "--write"] or PAGES
    n_wrong = 0
    for page in pages:
        text, namespace, changes = page.read_text(encoding="utf-8"), {}, []
        for example in examples(text):
            if example.runs:
                printed = example.run(namespace)
                if wrong := example.differs(printed):
                    n_wrong += 1
                    print(f"{page.name}:{example.line}: shows {wrong}")
                    if example.shown:
                        changes.append((example.shown.span("text"), printed))
        for (start, end), printed in reversed(changes) if write else ():
            lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
            text = text[:start] + "\n".join(lines) + "\n" + text[end:]
            page.write_text(text, encoding="utf-8")
    return bool(n_wrong) and not write


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
