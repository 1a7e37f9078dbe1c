"""Griffe's extension: doctests anywhere in a docstring are code on the site, not prose."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


def fenced(docstring: str) -> str:
    """The docstring with its doctests between fences."""
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)


class FencedDoctests(griffe.Extension):
    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = fenced(obj.docstring.value)
