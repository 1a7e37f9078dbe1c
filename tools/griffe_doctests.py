"""Griffe's extension: doctests and Sphinx' roles anywhere in a docstring are code on the site."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|data|func|meth|mod):`~?([^`]+)`")
_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


def fenced(docstring: str) -> str:
    """The docstring with its doctests between fences, and names as code without their roles."""
    plain = _ROLE.sub(r"`\1`", docstring)
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", plain)


class FencedDoctests(griffe.Extension):
    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = fenced(obj.docstring.value)
