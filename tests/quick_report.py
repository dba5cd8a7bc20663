"""Reports whose figures are not rendered: rendering takes most of the time of a short evaluation.

`evaluation/report/`, a mesh that a command starts, and runs of several processes test rendered figures. Here every
figure is built, and its numbers and its files are real. Only its picture is blank.
"""

from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from markupsafe import Markup

BLANK = np.full((2, 2, 4), 255, np.uint8)


@contextmanager
def blank_figures():
    """Write each figure as a blank picture, in the page and as PNG."""
    from evaluation.report import drawing  # imports matplotlib, which most tests do not need

    with (
        patch.object(drawing, "_pixels", lambda figure: BLANK),
        patch.object(
            drawing, "inline_svg", lambda figure, name, alt: Markup('<svg role="img" aria-label="{}"/>').format(alt)
        ),
    ):
        yield
