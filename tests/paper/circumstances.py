"""Circumstances that decide, and that do not."""

from noisescale.paper.section import Circumstances

DECIDING = Circumstances("full", 5, "mnist", True, "abc")
SMALL = Circumstances("smoke", 1, "mnist", True, "abc")
