"""The paper, re-measured: one module a section, from measurement to report."""

from noisescale.paper.sections import SECTIONS
from noisescale.paper.stages import PaperReport, redraw, run_paper

__all__ = ["SECTIONS", "PaperReport", "redraw", "run_paper"]
