"""The paper, re-measured: one module a section, the claims, and the report."""

from noisescale.paper.run import SECTIONS, PaperReport, redraw, run_paper

__all__ = ["SECTIONS", "PaperReport", "redraw", "run_paper"]
