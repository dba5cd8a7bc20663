"""One page with all its figures, for the tests of its text and for the browser: to draw it takes seconds."""

import pytest
from report_parts import make_target

from evaluation.report.figures import draw_figures
from evaluation.report.page import write_report


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """The folder of a report, and its drawings."""
    folder, drawings = tmp_path_factory.mktemp("report"), draw_figures(make_target())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evaluation.report.page.draw_figures", lambda *_: drawings)
        write_report(folder, [make_target()])
    return folder, drawings
