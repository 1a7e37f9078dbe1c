"""Text from elsewhere, as a terminal, a page or a picture may show it."""

import re

# Control characters but newline and tab, what turns the direction of writing, halves of surrogate
# pairs, and what XML forbids.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)
_LONGEST_WORD, _LONGEST = 200, 1_000


def printable(text: str) -> str:
    """With escapes in place of what would command a terminal, or is no text at all."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(text: str, length: int = _LONGEST) -> str:
    """A message without the middle of words and lines that nobody reads to their end."""
    text = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda found: _ends(found[0], _LONGEST_WORD), text)
    return _ends(text, length)


def _ends(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    tail = length // 4
    return f"{text[: length - tail - 3]}...{text[-tail:]}"
