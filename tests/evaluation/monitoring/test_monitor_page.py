"""Parts of the page of `monitor` that runs of the verb do not reach."""

import warnings

import numpy as np
import pytest

from evaluation.monitoring.control_chart import control_chart
from evaluation.monitoring.monitor_page import chart_panel
from evaluation.report.figure_style import inline_svg


@pytest.mark.parametrize("days", [92, 130, 200, 365, 500, 731, 1100, 2500, 5000])
def test_charts_of_any_length_have_few_dates(days):
    values = np.random.default_rng(1).normal(size=days)
    one = control_chart(np.datetime64("2020-01-29") + np.arange(days), values, 90, 0.1, 365, two_sided=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        panel = chart_panel("2t +24 h global: bias / spread", one)
        svg = inline_svg(panel.figure, "one", panel.alt)
    assert 2 <= svg.count("xtick") <= 8
