"""What counts as a line of code."""

from size import sizes

TEXT = '''"""What it is."""

x = (
    1,  # one
)


def f():
    """What it does."""
    return 2
'''


def test_docstrings_comments_and_blank_lines_do_not_count():
    assert sizes(TEXT) == (5, 3)
