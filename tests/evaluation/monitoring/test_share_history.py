"""The layer at the start of a forecast uses the forecasts that were valid by then, in whatever order they came."""

import numpy as np
import pytest

from evaluation.monitoring.monitor_state import MonitoredForecast, MonitorState, VerifiedForecast
from evaluation.monitoring.share_history import ShareHistory
from models.correction.conformal import tracked_scores

DAY = 86_400


@pytest.mark.parametrize("lead", [24, 72])
@pytest.mark.parametrize("ordered", [True, False])
def test_scores_are_those_of_the_forecasts_that_were_valid(lead, ordered):
    rng = np.random.default_rng(1)
    shares = {MonitoredForecast("2t", day * DAY, lead): rng.uniform(size=3) for day in range(30)}
    others = {MonitoredForecast("2t", day * DAY, lead + 24): rng.uniform(size=3) for day in range(30)}
    every = list((shares | others).items())
    if not ordered:
        rng.shuffle(every)
    known = dict(every[:20])
    state = MonitorState({}, {key: VerifiedForecast("", False, {}, {"all": one}) for key, one in known.items()})
    history = ShareHistory(0.8, 0.1, state)
    for key, one in every[20:]:
        history.add(key, VerifiedForecast("", False, {}, {"all": one}))
    for key in shares:
        before = np.array([one for other, one in shares.items() if other.start + lead * 3600 <= key.start])
        np.testing.assert_allclose(history.scores_at(key, "all"), tracked_scores(0.8, 0.1, before), atol=1e-12)
    assert (
        np.ptp(history.scores_at(MonitoredForecast("2t", 40 * DAY, lead), "tropics")) > 2
    )  # nominal: nothing is known
