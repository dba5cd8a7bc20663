"""The heat experiment against loops over cells, the numbers of the paper and conservation of heat."""

import numpy as np
import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.synthetic.heat import Heat, diffuse, draw_regions, simulate_frames
from data_pipeline.task import Task, Variable

TASK = Task("heat", ["heat"], ["heat"], [1], ["region"])
SMALL = {"rows": 9, "columns": 11, "first_year": 2000, "last_year": 2003, "steps": 12}


def stencil(field, alpha):
    """Return the field after one step, computed cell by cell in double precision."""
    rows, columns = field.shape
    out = np.zeros((rows, columns))
    for i, j in np.ndindex(rows, columns):
        out[i, j] = field[i, j]
        for di, dj in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            inside = 0 <= i + di < rows and 0 <= j + dj < columns
            out[i, j] += alpha[i, j] * ((field[i + di, j + dj] if inside else 0.0) - field[i, j])
    return out


def test_diffuse_equals_a_loop_over_cells():
    generator = np.random.default_rng(0)
    field, alpha = generator.random((5, 7)), generator.uniform(0.01, 0.25, (5, 7))
    np.testing.assert_allclose(diffuse(field, alpha), stencil(field, alpha), rtol=1e-14)
    np.testing.assert_allclose(diffuse(field[None].repeat(3, 0), alpha)[1], stencil(field, alpha), rtol=1e-14)


def test_the_maximum_never_grows_and_heat_leaves_only_at_the_edges():
    """Two cells exchange equal amounts of x/α, so Σ x/α changes only at the edges."""
    heat = Heat(**SMALL)
    frames, alpha = heat.frames(2001), np.array(heat.diffusivities)[heat.region]
    assert (np.diff(frames.max((1, 2))) <= 0).all()
    assert frames.min() >= 0
    edges = frames[:, [0, -1]].sum((1, 2)) + frames[:, :, [0, -1]].sum((1, 2))
    np.testing.assert_allclose(-np.diff((frames / alpha).sum((1, 2))), edges[:-1], rtol=1e-2)


def test_regions_have_the_numbers_of_cells_of_the_paper():
    """Each draw depends on all draws before it, so equal numbers mean an equal map."""
    assert np.bincount(Heat().region.ravel()).tolist() == [1449, 1212, 1435]


def test_a_run_starts_with_noise_and_equally_many_hot_points_in_each_region():
    region = draw_regions((20, 20), 3, np.random.default_rng(1))
    found = set()
    for seed in range(40):
        first = simulate_frames(region, (0.0025, 0.025, 0.25), 1, np.random.default_rng(seed))[0]
        hot = first == 1
        assert 0 <= first[~hot].min() < 0.01 < 0.09 < first[~hot].max() <= 0.1
        # Points are drawn with replacement and may coincide.
        each = np.bincount(region[hot], minlength=3)
        assert each.min() >= 1
        found.add(int(each.max()))
    assert found == {1, 2, 3}


def test_a_sample_holds_a_frame_and_the_next_frame():
    heat = Heat(**SMALL)
    data = ForecastDataset(heat, TASK, [2001, 2002], rows=slice(2, 7), columns=slice(1, 4))
    frames = {year: heat.frames(year)[:, 2:7, 1:4] for year in (2001, 2002)}
    assert len(data) == 2 * 12
    for k, (year, step) in enumerate((year, step) for year in (2001, 2002) for step in range(12)):
        sample = data[k]
        np.testing.assert_array_equal(sample.ensemble[0, 0], frames[year][step])
        np.testing.assert_array_equal(sample.target[0], frames[year][step + 1])
        np.testing.assert_array_equal(sample.static[-1], heat.region[2:7, 1:4])
        assert sample.mask.all()
        start = np.datetime64(f"{year}-01-01T00:00:00") + np.timedelta64(step, "h")
        assert int(sample.init_time) == start.astype(np.int64)


def test_a_lead_time_of_n_hours_is_n_steps():
    heat = Heat(**SMALL)
    data = ForecastDataset(heat, Task("heat", ["heat"], ["heat"], [3, 12]), [2000])
    assert len(data) == 10 + 1
    truth = heat.frames(2000)
    by_lead = {(int(s.lead_time), k): s for k, s in enumerate(data)}
    assert sorted(lead for lead, _ in by_lead) == [3] * 10 + [12]
    for (lead, _), sample in by_lead.items():
        at = int((truth[:, 4, 4] == float(sample.ensemble[0, 0, 4, 4])).argmax())
        torch.testing.assert_close(sample.target[0], torch.from_numpy(truth[at + lead]), rtol=0, atol=0)


def test_a_run_does_not_depend_on_other_years_or_the_order_of_reading():
    early, late = Heat(**SMALL), Heat(**SMALL | {"first_year": 1990, "last_year": 2050})
    late.frames(2040)
    np.testing.assert_array_equal(early.frames(2003), late.frames(2003))
    assert abs(early.frames(2003) - early.frames(2002)).max() > 0.5
    assert abs(early.frames(2003) - Heat(**SMALL | {"seed": 1}).frames(2003)).max() > 0.5


def test_wrong_options_are_refused():
    for options, sentence in (
        ({"rows": 2}, "data.archive.rows must be a whole number from 3 to 1000, got 2"),
        ({"last_year": 1999}, "data.archive.last_year must be a whole number from 2000 to 9999, got 1999"),
        ({"diffusivities": [0.1, 0.3]}, "data.archive.diffusivities must be numbers greater than 0 and at most 0.25"),
        ({"diffusivities": 0.1}, "data.archive.diffusivities must be numbers greater than 0 and at most 0.25"),
        ({"diffusivities": [0.1]}, "data.archive.diffusivities must be two or more numbers"),
        ({"rows": 3, "columns": 3, "diffusivities": [0.1] * 10}, "diffusivities must be two or more numbers"),
    ):
        with pytest.raises(InputError, match=sentence):
            Heat(**SMALL | options)


def test_other_variables_and_years_are_refused():
    with pytest.raises(InputError, match="data=heat has only the variable heat, not 2t; use task=heat"):
        Heat(**SMALL).analysis_fields([Variable("2t")])
    with pytest.raises(InputError, match="no forecast that is valid in 1990-1991 can be used"):
        ForecastDataset(Heat(**SMALL), TASK, [1990, 1991])
