"""What ships, judged and drawn once a process; who uses it stands in ``_DEAR`` of conftest.py."""

from noisescale.paper import SECTIONS
from noisescale.paper.section import Findings
from noisescale.paper.stages import shown_at_full_scale


def findings(section: str) -> Findings:
    """What the shipped data of a section say."""
    return shown_at_full_scale(SECTIONS[section]).findings
