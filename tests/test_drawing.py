"""Pictures that carry their values."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from noisescale.drawing import drawn, house_style, inline, literal, sketch, to_svg
from noisescale.errors import InputError


def draw(axes):
    axes.plot([1, 10, 100], [0.5, 0.9, 0.7], label="a <run>")
    axes.set(xscale="log", xlabel="batch size", ylabel="accuracy")


@pytest.fixture
def svg():
    figure = Figure(figsize=(5, 3), layout="constrained")
    with house_style():
        draw(figure.add_subplot())
        return to_svg(figure)


def points(svg):
    found = re.findall(r'<circle cx="(\S+)" cy="(\S+)" r="4"><title>([^<]*)</title>', svg)
    return np.array([(float(x), float(y)) for x, y, _ in found]), [title for *_, title in found]


def test_values_stand_where_the_line_is_drawn(svg):
    at, titles = points(svg)
    assert titles[1] == "a &lt;run&gt;\nbatch size: 10\naccuracy: 0.9"
    lines = re.findall(r'<g id="line2d_\d+">\s*<path d="(M [^"]+)" clip-path', svg)
    (line,) = (line for line in lines if line.count("L") == 2)  # the others are the grid
    corners = np.array(re.findall(r"[ML] (\S+) (\S+)", line), float)
    np.testing.assert_allclose(at, corners, atol=0.1)


def test_points_that_are_not_shown_have_no_value():
    with house_style():
        axes = Figure().add_subplot()
        axes.plot([0, 1, 2], [0, np.nan, 2])
        axes.axvline(1)
        axes.set_xlim(0, 1.5)
        axes.errorbar([0.5], [0.5], yerr=0.1, label="one")
        axes.scatter([1.2], [1.2], label="cloud")
        _, titles = points(to_svg(axes.figure))
    assert titles == ["x: 0\ny: 0", "one\nx: 0.5\ny: 0.5", "cloud\nx: 1.2\ny: 1.2"]


def test_many_values_are_thinned_out():
    axes = Figure().add_subplot()
    axes.plot(range(5_000))
    assert 20 <= len(points(to_svg(axes.figure))[1]) <= 40


def test_the_same_figure_gives_the_same_text(svg):
    figure = Figure(figsize=(5, 3), layout="constrained")
    with house_style():
        draw(figure.add_subplot())
        assert to_svg(figure) == svg


def test_inside_a_page_ids_are_its_own(svg):
    first, second = inline(svg, 'say "it"', "one"), inline(svg, "", "two")
    assert first.startswith("<svg ")
    assert "&quot;it&quot;" in first
    assert "<style" not in first
    assert "<metadata" not in first
    ids = [set(re.findall(r'\bid="([^"]+)"', part)) for part in (first, second)]
    assert not ids[0] & ids[1]
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', first))
    assert used
    assert used <= ids[0]


def test_a_sketch_takes_the_colour_around_it():
    made = sketch(draw, "what it shows")
    assert 'aria-label="what it shows"' in made
    assert "fill: currentColor" in made
    assert "#ffffff" not in made


def test_drawn_into_a_file(tmp_path):
    drawn(draw, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("$\\ZZQ{$", "$\\ZZQ{$"),
        ("one $", "one $"),
        ("\\$ and $x$", "\\$ and $x$"),
        ("\x1b[31m\ud800", "\\x1b[31m\\ud800"),
    ],
)
def test_a_label_from_data_begins_no_formula(text, shown):
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    axes.plot([1, 2], [1, 2], label=literal(text))
    axes.set(xlabel="the $x$", ylabel=literal(text))
    axes.legend()
    _, titles = points(to_svg(figure))
    assert titles[0] == f"{shown}\nthe x: 1\n{shown}: 1"


def test_pictures_are_files_of_the_kind_that_their_names_end_in(tmp_path):
    for name, begins in (("p.svg", b"<?xml"), ("p.PNG", b"\x89PNG"), ("p", b"\x89PNG")):
        drawn(draw, tmp_path / name)
        written = tmp_path / ("p.png" if name == "p" else name)
        assert written.read_bytes().startswith(begins)
    with pytest.raises(InputError, match=r"a picture must end in one of .*\.png.*got p\.txt"):
        drawn(draw, "p.txt")
    with pytest.raises(InputError, match="cannot be written"):
        drawn(draw, tmp_path / "no" / "p.png")
