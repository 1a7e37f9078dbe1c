"""The paper, re-measured: one module a section, the claims, and the report."""

from noisescale.paper.run import SECTIONS, PaperReport, run_paper

__all__ = ["SECTIONS", "PaperReport", "run_paper"]
