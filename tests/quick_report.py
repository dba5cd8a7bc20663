"""Evaluations that take a part of their time: figures are not rendered, and tables have fewer parts.

`evaluation/report/`, a mesh that a command starts, and runs of several processes test rendered figures and whole
tables. Here every figure is built, and its numbers and its files are real. Only its picture is blank.
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


def no_figures():
    """Write reports without figures."""
    return patch("evaluation.report.page.draw_figures", lambda *_: {})


@contextmanager
def few_parts():
    """Score each lead time, each season and each region, and no season of a region or of a lead time.

    scores.json has all its numbers; scores.csv and scores.nc lack rows, of which there are six times as many.
    """
    from evaluation.tables import score_rows

    every = score_rows.list_parts

    def by_one_kind(board):
        whole = score_rows.whole(board)
        kinds = ("lead_time", "season", "region")
        return [part for part in every(board) if sum(getattr(part, kind) != getattr(whole, kind) for kind in kinds) < 2]

    with patch.object(score_rows, "list_parts", by_one_kind):
        yield
