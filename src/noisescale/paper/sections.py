"""Every section, in the report's order."""

from noisescale.paper import (
    appendix_a,
    appendix_c,
    appendix_d,
    appendix_e,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    figure9,
    figure10,
    figure11,
    law,
    reading_curvature,
    reading_grid,
    reading_longer,
    reading_posterior,
    reading_steps,
    reading_tuning,
    units,
)
from noisescale.paper.section import Section

SECTIONS: dict[str, Section] = {
    module.SECTION.id: module.SECTION
    for module in (
        units,
        figure1,
        figure2,
        figure3,
        figure4,
        figure5,
        figure6,
        law,
        figure7,
        figure8,
        figure9,
        figure10,
        figure11,
        appendix_a,
        appendix_c,
        appendix_d,
        appendix_e,
        reading_grid,
        reading_longer,
        reading_steps,
        reading_tuning,
        reading_curvature,
        reading_posterior,
    )
}
