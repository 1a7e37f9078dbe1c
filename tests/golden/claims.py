"""What is said of every claim and reading, as names and plain values.

claims_of(document)    {"C20 | ... classes | measured, slope": 0.569, "... | verdict": ...}
"""

import math
import re
from collections.abc import Iterator
from typing import Any

_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def claims_of(document: dict[str, Any]) -> dict[str, Any]:
    """The verdict, every number measured and its uncertainty, from the content of claims.json."""
    named = {}
    for row in document["claims"] + document["readings"]:
        place = f"{row['id']} | {row['convention']}"
        for quantity in ("verdict", "measured", "uncertainty"):
            for name, value in _flat(quantity, row[quantity]):
                named[f"{place} | {name}"] = value
    return named


def alike(known: Any, new: Any) -> bool:
    """Whether two values differ by no more than the rounding of their last digit.

    Numbers are given to four digits; in a text each number is compared by the digits it shows.
    """
    if isinstance(known, str) and isinstance(new, str):
        words = _NUMBER.sub("#", known) == _NUMBER.sub("#", new)
        pairs = zip(_NUMBER.findall(known), _NUMBER.findall(new), strict=False)
        return words and all(abs(_number(a) - _number(b)) <= _last_digit(a) for a, b in pairs)
    if isinstance(known, float) and isinstance(new, float):
        return math.isclose(known, new, rel_tol=1e-3, abs_tol=1e-12)
    return bool(known == new)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(f"{name}, {key}", part)
    elif isinstance(value, list):
        for k, part in enumerate(value):
            yield from _flat(f"{name} {k}", part)
    else:
        yield name, value


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _last_digit(text: str) -> float:
    """One unit of the last digit shown, and a little for the binary fraction."""
    digits, _, exponent = text.replace(",", "").partition("e")
    decimals = len(digits.partition(".")[2])
    return 1.001 * 10.0 ** (int(exponent or 0) - decimals)
