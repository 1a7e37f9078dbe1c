"""Settings of equal and of twice the noise scale, and what their fluctuations show, drawn."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.paper.matched import COARSE, DOUBLED, MATCHED, Setting
from noisescale.paper.section import Picture
from noisescale.uncertainty import Estimate


def draw_both(quadratic: dict[Setting, Estimate], network: dict[Setting, Estimate]) -> Picture:
    """A quadratic's settings and the network's, side by side."""
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        fine = {s: seen for s, seen in quadratic.items() if s.kind != COARSE}
        draw_settings(panels[0], fine, "(a) a quadratic")
        draw_settings(panels[1], network, "(b) the paper's network")
        svg = to_svg(figure)
    return Picture(
        name="appendixD",
        svg=svg,
        caption="The noise scale that the stationary fluctuations show, for settings that share g "
        "and for settings of twice that (dashed lines: g and 2g); bars are three standard errors.",
        alt="Two charts of the noise scale shown by fluctuations, one point a setting: "
        + "; ".join(f"{s}: {seen}" for s, seen in (fine | network).items()),
    )


def draw_settings(axes: Axes, shown: dict[Setting, Estimate], title: str) -> None:
    """A row a setting, equal g and twice g in colours, dashed lines at both."""
    for k, (setting, seen) in enumerate(shown.items()):
        colour = COLOURS[(MATCHED, DOUBLED).index(setting.kind)]
        axes.errorbar(seen.value, k, xerr=3 * seen.std, fmt="o", color=colour, markersize=4)
    for g in sorted({setting.noise_scale for setting in shown}):
        axes.axvline(g, color="grey", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(shown)), [str(setting) for setting in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="noise scale shown", title=title, xlim=(0, None))
