"""What is shown commands no terminal, and is short."""

import pickle

import numpy as np
import pytest

from noisescale.checks import check_choice
from noisescale.errors import InputError
from noisescale.notebook import Displayed
from noisescale.text import printable, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ε\tB\nnext", "plain ε\tB\nnext"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x00\r\x9b5m\x7f", "\\x00\\r\\x9b5m\\x7f"),
        ("\u202eleft\u2066", "\\u202eleft\\u2066"),
        ("\ud800", "\\ud800"),
        ("\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}\xa0x",) * 2,
    ],
)
def test_what_would_command_a_terminal_is_an_escape(text, shown):
    assert printable(text) == shown


def test_what_nobody_reads_to_the_end_is_cut():
    assert shortened("a sentence of words.") == "a sentence of words."
    assert len(shortened("x" * 20_000)) == 200
    assert shortened(f"begin {'x' * 20_000} end").endswith("xxx end")
    assert len(shortened("many words " * 2_000)) == 1_000


def test_a_refusal_is_short_and_harmless():
    error = InputError(f"no {'x' * 20_000} \x1b[31m: choose.")
    assert len(str(error)) < 250
    assert "\x1b" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    for value in ("x" * 20_000, 3, np.zeros(5_000)):
        with pytest.raises(InputError, match="must be one of a, b, got") as refused:
            check_choice("via", value, ("a", "b"))
        assert len(str(refused.value)) < 90


def test_a_notebook_shows_no_control_characters():
    class Result(Displayed):
        def to_dict(self):
            return {"name": "\x1b[31m", "notes": ["\x00"], "table": [{"\x9b": "\ud800"}]}

    shown = Result()._repr_html_()
    assert shown == printable(shown)
    assert "\\x1b[31m" in shown
    shown.encode("utf-8")
