"""References are fitted by `evaluate` itself, on training dates only, and never end a run."""

import numpy as np
import pytest
import scoringrules
import torch
from memory_archive import GRID, TASK, MemoryArchive, memory_fields, untrained_emos

from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation.forecasters import references
from evaluation.forecasters.persistence import Persistence
from models import reference_emos
from models.distribution import ByTarget, CensoredNormal, Normal
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh

AREA = np.broadcast_to(GRID.weights[:, None], GRID.shape)


class ArchiveWithStarts(MemoryArchive):
    """The memory archive, with an analysis at the start of every forecast but those of the rows `without`."""

    def __init__(self):
        super().__init__()
        self.before = self.truth[:, 1] + 2 * self.rng.normal(size=self.truth[:, 1].shape)
        self.without = []

    def analysis_fields(self, variables):
        kept = np.setdiff1d(np.arange(len(self.starts)), self.without)
        leads = np.array([24, 48], "timedelta64[h]")
        times = np.concatenate([self.starts[kept], (self.starts[:, None] + leads).ravel()])
        values = np.concatenate([self.before[kept], self.truth.reshape(-1, *GRID.shape)])
        order = times.argsort()
        return memory_fields(values[order][:, None, None], times[order], variables, (0,))


@pytest.fixture
def archive():
    return ArchiveWithStarts()


def test_emos_without_a_corrector_equals_a_trained_one(archive, scores_of, tmp_path):
    """`train model=emos` fits the same options to the same dates; the file takes the place of the reference."""
    own = scores_of("own")
    corrector, data = untrained_emos(archive)
    corrector.fit(data)
    corrector.save(tmp_path / "emos.safetensors")
    given = scores_of("given", f"correctors={{emos: {tmp_path}/emos.safetensors}}")
    assert list(own["models"]) == list(given["models"]) == ["raw", "climatology", "emos"]
    for key in ("crps", "rmse", "spread", "skill_vs_climatology", "skill_vs_raw"):
        assert own["models"]["emos"][key] == pytest.approx(given["models"]["emos"][key], rel=1e-4), key
    assert own["models"]["emos"]["members"]["crps"] > own["models"]["emos"]["crps"]
    assert "emos" in own["leak_audit"]["models"]


def test_emos_is_fitted_once_for_the_same_data_and_dates(archive, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(reference_emos.SPEC, "shared", False)

    def fitted(year=2014):
        dates = Dates.of_years([year])
        corrector = reference_emos.fit_emos(archive, TASK, dates, None, Domain.of(GRID), Mesh.single(), 10)
        return corrector.model.coefficients, capsys.readouterr().out

    first, out = fitted()
    assert "fitting emos on the training dates, about" in out
    again, out = fitted()
    (file,) = (tmp_path / "cache/emos").iterdir()
    assert out == f"emos was fitted on the training dates before, and is read from {file}\n"
    file.write_bytes(b"damaged")
    damaged, out = fitted()
    assert "fitting emos" in out
    assert torch.equal(again, first)
    assert torch.equal(damaged, first)
    other, out = fitted(2015)
    archive.fingerprint = "other"
    assert "fitting emos" in out + fitted()[1]
    assert len(list((tmp_path / "cache/emos").iterdir())) == 3
    assert not torch.allclose(other, first, rtol=0.01)


def test_a_fit_that_takes_too_long_is_left_out(scores_of, monkeypatch, capsys):
    monkeypatch.setattr(reference_emos, "SECONDS_PER_EVALUATION", 1.0)
    scores = scores_of("run", "emos_minutes=20")
    assert list(scores["models"]) == ["raw", "climatology"]
    (warning,) = scores["warnings"]
    minutes = 20 * 7 * 12 * 160 / 60
    assert f"its fit would take about {minutes:.0f} minutes, and emos_minutes=20; train it with" in warning
    assert f"warning: {warning}" in capsys.readouterr().out


def test_whatever_keeps_a_reference_from_being_fitted_is_a_warning(archive, scores_of, emos, monkeypatch):
    def broken(name, *arguments):
        if name == "climatology":
            raise references.InputError("analysis.grib is cut off")
        return made(name, *arguments)

    made = references.make_reference
    monkeypatch.setattr(references, "make_reference", broken)
    archive.without = range(60)
    scores = scores_of("run", f"correctors={{emos: {emos}}}", "references=[raw,climatology,persistence]")
    assert list(scores["models"]) == ["raw", "emos"]
    first, second = scores["warnings"]
    assert first.startswith("climatology is left out: analysis.grib is cut off; so nothing here shows that")
    assert second.startswith(
        "persistence is left out: 0 training forecasts of 48 h have an analysis at start and valid"
    )


@pytest.mark.parametrize("name", ["climatology", "emos", "persistence"])
def test_a_reference_that_would_be_fitted_on_scored_dates_is_refused(refusal, name):
    assert refusal(f"references=[raw,{name}]", "split=train") == (
        f"references: {name} would leak, because 2014-01-01, a scored date, is among its training dates 2014; "
        f"score another split, or leave out {name} with references=[raw]"
    )


def test_slow_first_reads_do_not_count_in_the_time_of_a_fit(archive, monkeypatch):
    """The first read of a process opens files; four fast reads and one slow one have a fast median."""
    data = ForecastDataset(archive, TASK, Dates.of_years([2014]))
    clock, reads = [0.0], []
    monkeypatch.setattr(reference_emos.time, "monotonic", lambda: clock[0])

    def read(part, index):
        reads.append(index)
        clock[0] += 30.0 if len(reads) in (1, 4) else 0.001

    monkeypatch.setattr(ForecastDataset, "__getitem__", read)
    monkeypatch.setattr(reference_emos, "SECONDS_PER_EVALUATION", 0.0)
    assert reference_emos.estimated_seconds(data) == pytest.approx(2 * len(data) * 0.001)


def test_persistence_is_a_normal_distribution_around_the_analysis_at_the_start(archive, scores_of):
    """CRPS by a published library, with the spread computed from the arrays of the archive."""
    scores = scores_of("run", "references=[raw,persistence]")
    assert list(scores["models"]) == ["raw", "persistence"]
    year = archive.starts.astype("datetime64[Y]").astype(int) + 1970
    train, test = year == 2014, year == 2016
    before, after = archive.before.astype(np.float32), archive.truth[:, 1].astype(np.float32)
    spread = np.sqrt(((after - before)[train] ** 2).mean(0))
    crps = scoringrules.crps_normal(after[test], before[test], spread).mean(0)
    assert scores["models"]["persistence"]["crps"] == pytest.approx(np.average(crps, weights=AREA), rel=1e-5)
    error = np.average((before - after)[test].mean(0), weights=AREA)
    assert scores["models"]["persistence"]["bias"] == pytest.approx(error, rel=1e-4)


def batch_of(archive, rows, targets=1):
    """A batch of starts of the archive, of which persistence reads the times alone."""
    times = torch.from_numpy(archive.starts[rows].astype("datetime64[s]").astype(int))
    nothing = (torch.zeros(len(rows), 1),) * 3
    return Sample(*nothing, torch.zeros(len(rows), targets, *GRID.shape), times, torch.full((len(rows),), 48))


def test_persistence_of_rain_has_no_probability_below_zero(archive):
    archive.before, archive.truth = (np.maximum(values - 280, 0) for values in (archive.before, archive.truth))
    scored = Dates.of_years([2016])

    def forecast(*targets):
        task = Task("x", list(targets), list(targets), [48])
        folds = [(Dates.of_years([2014]), scored)]
        made = Persistence.fit(lambda _: archive, task, scored, folds, Domain.of(GRID))
        return made(batch_of(archive, [45], len(targets)))

    rain, both, warm = forecast("tp:24h"), forecast("tp:24h", "2t"), forecast("2t")
    assert [type(one) for one in (rain, both, warm)] == [CensoredNormal, ByTarget, Normal]
    below = torch.full((1, 1, *GRID.shape), -1e-6)
    assert (rain.cdf(below) == 0).all()
    assert (warm.cdf(below) > 0).any()
    torch.testing.assert_close(both.mean, torch.cat([rain.mean, warm.mean], 1))


def test_folds_have_spreads_of_their_own_and_a_start_without_an_analysis_has_no_value(archive):
    """The spread of each fold comes from pairs of which both analyses are on its training dates."""
    archive.without = [46]
    years = [(Dates.of_years([kept, 2015]), Dates.of_years([lost])) for kept, lost in ((2014, 2016), (2016, 2014))]
    made = Persistence.fit(lambda _: archive, TASK, Dates.of_years([2014, 2016]), years, Domain.of(GRID))
    year = archive.starts.astype("datetime64[Y]").astype(int) + 1970
    squared = (archive.truth[:, 1] - archive.before) ** 2
    for spread, held_out in zip(made.spreads, (2016, 2014), strict=True):
        known = (year != held_out) & (np.arange(60) != 46)
        expected = np.sqrt(squared[known].mean(0))
        np.testing.assert_allclose(spread[0, 0].numpy(), expected, rtol=1e-4)
    found = made(batch_of(archive, [3, 45, 46]))
    torch.testing.assert_close(found.sigma[:2], torch.stack([made.spreads[1][0], made.spreads[0][0]]))
    np.testing.assert_allclose(found.mu[:2, 0], archive.before[[3, 45]], rtol=1e-6)
    assert found.mu[2].isnan().all()
