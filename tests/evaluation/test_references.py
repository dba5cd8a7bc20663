"""References are fitted by `evaluate` itself, on training dates only, and never end a run."""

import json

import numpy as np
import pytest
import scoringrules
import torch
from memory_archive import GRID, MemoryArchive, MemoryFields

from conf import build
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation import evaluate, references
from evaluation.persistence import Persistence
from models import reference_emos
from models.corrector import Corrector
from models.distribution import CensoredNormal, Normal, Patched
from models.parallel.domain import Domain
from models.reference_emos import LeftOutError, emos_spec

TASK = Task("t2m", ["2t"], ["2t"], [48])


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
        return MemoryFields(values[order][:, None, None], times[order], variables, (0,))


@pytest.fixture
def with_starts(monkeypatch):
    memory = ArchiveWithStarts()
    monkeypatch.setattr(evaluate, "build", lambda node: memory if "ensemble" in node else build(node))
    return memory


@pytest.fixture
def scores_of(deepweather, monkeypatch, tmp_path):
    """Run `evaluate` without drawing; return the scores."""
    monkeypatch.setattr(evaluate, "write_report", lambda *_: None)

    def run(name, *options):
        deepweather(tmp_path / name, *options)
        return json.loads((tmp_path / name / "scores.json").read_text())

    return run


def test_emos_without_a_corrector_equals_a_trained_one(archive, scores_of, tmp_path):
    """`train model=emos` fits the same options to the same dates; the file takes the place of the reference."""
    own = scores_of("own")
    assert list(own["models"]) == ["raw", "climatology", "emos"]
    data = ForecastDataset(archive, TASK, [2014])
    provenance = {"train_years": [2014, 2014], "val_years": [2015, 2015], "members": 5}
    corrector = Corrector(TASK, GRID, {"_target_": "models.statistical.emos.EMOS"}, data.static, provenance)
    corrector.fit(data)
    corrector.save(tmp_path / "emos.safetensors")
    given = scores_of("given", f"correctors={{emos: {tmp_path}/emos.safetensors}}")
    assert list(given["models"]) == ["raw", "climatology", "emos"]
    for key in ("crps", "rmse", "spread", "skill_vs_climatology", "crps_minus_raw"):
        assert own["models"]["emos"][key] == pytest.approx(given["models"]["emos"][key], rel=1e-4), key
    assert own["models"]["emos"]["members"]["crps"] > own["models"]["emos"]["crps"]
    assert own["leak_audit"]["models"]["emos"]["by_part"]


def test_emos_is_fitted_once_for_the_same_data_and_dates(archive, scores_of, capsys, tmp_path):
    first = scores_of("first", "references=[raw,emos]")
    assert "fitting emos on the training dates, about" in capsys.readouterr().out
    again = scores_of("again", "references=[raw,emos]", "batch_size=3")
    (file,) = (tmp_path / "cache/emos").iterdir()
    out = capsys.readouterr().out
    assert f"emos was fitted on the training dates before, and is read from {file}" in out
    assert "fitting emos" not in out
    assert again["models"]["emos"]["crps"] == pytest.approx(first["models"]["emos"]["crps"], rel=1e-6)
    file.write_bytes(b"damaged")
    damaged = scores_of("damaged", "references=[raw,emos]", "batch_size=4")
    assert "fitting emos" in capsys.readouterr().out
    assert damaged["models"]["emos"]["crps"] == pytest.approx(first["models"]["emos"]["crps"], rel=1e-6)
    archive.raw = archive.raw + np.linspace(0, 3, 60)[:, None, None, None, None]
    archive.fingerprint = "other"
    other = scores_of("other", "references=[raw,emos]")
    assert "fitting emos" in capsys.readouterr().out
    assert len(list((tmp_path / "cache/emos").iterdir())) == 2
    assert other["models"]["emos"]["crps"] > 1.1 * first["models"]["emos"]["crps"]


def test_a_fit_that_takes_too_long_is_left_out(archive, scores_of, monkeypatch, capsys):
    monkeypatch.setattr(reference_emos, "SECONDS_PER_CASE", 1.0)
    seconds = 20 * 7 * 12
    scores = scores_of("run", "emos_minutes=20")
    assert list(scores["models"]) == ["raw", "climatology"]
    warning = (
        f"emos is left out: its fit would take about {seconds / 60:.0f} minutes, and emos_minutes=20; train it with "
        "deepweather train model=emos and give it as correctors={emos: ...}, or allow more minutes"
    )
    assert scores["warnings"] == [warning]
    assert f"warning: {warning}" in capsys.readouterr().out


def test_whatever_keeps_a_reference_from_being_fitted_is_a_warning(archive, scores_of, emos, monkeypatch):
    def broken(name, *arguments):
        if name == "climatology":
            raise references.InputError("analysis.grib is cut off")
        return made(name, *arguments)

    made = references.make_reference
    monkeypatch.setattr(references, "make_reference", broken)
    scores = scores_of("run", f"correctors={{emos: {emos}}}")
    assert list(scores["models"]) == ["raw", "emos"]
    assert scores["warnings"] == ["climatology is left out: analysis.grib is cut off"]


@pytest.mark.parametrize("name", ["climatology", "emos", "persistence"])
def test_a_reference_that_would_be_fitted_on_scored_dates_is_refused(with_starts, deepweather, tmp_path, capsys, name):
    with pytest.raises(SystemExit) as left:
        deepweather(tmp_path / "run", f"references=[raw,{name}]", "split=train")
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        f"error: references: {name} would leak, because 2014-01-01, a scored date, is among its training dates 2014; "
        f"score another split, or leave out {name} with references=[raw]\n"
    )
    assert not (tmp_path / "run").exists()


def test_emos_has_the_family_of_its_targets():
    def spec(*targets):
        return emos_spec(Task("x", list(targets), list(targets), [48]))

    assert spec("2t", "t@850") == {"_target_": "models.statistical.emos.EMOS"}
    assert spec("tp:24h")["family"] == "censored_logistic"
    assert (spec("tp:24h")["power"], spec("tp:24h")["lower"]) == (0.5, 0)
    with pytest.raises(LeftOutError, match=r"^no family suits all targets of the task; train one"):
        spec("2t", "tp:24h")


def test_persistence_is_a_normal_distribution_around_the_analysis_at_the_start(with_starts, scores_of):
    """CRPS by a published library, with the spread computed from the arrays of the archive."""
    scores = scores_of("run", "references=[raw,persistence]")
    assert list(scores["models"]) == ["raw", "persistence"]
    year = with_starts.starts.astype("datetime64[Y]").astype(int) + 1970
    train, test = year == 2014, year == 2016
    before, after = with_starts.before.astype(np.float32), with_starts.truth[:, 1].astype(np.float32)
    spread = np.sqrt(((after - before)[train] ** 2).mean(0))
    crps = scoringrules.crps_normal(after[test], before[test], spread).mean(0)
    expected = np.average(crps, weights=np.broadcast_to(GRID.weights[:, None], GRID.shape))
    assert scores["models"]["persistence"]["crps"] == pytest.approx(expected, rel=1e-5)
    error = np.average((before - after)[test].mean(0), weights=np.broadcast_to(GRID.weights[:, None], GRID.shape))
    assert scores["models"]["persistence"]["bias"] == pytest.approx(error, rel=1e-4)


def test_starts_without_an_analysis_are_left_out_of_persistence_and_counted(with_starts, scores_of):
    complete = scores_of("complete", "references=[raw,emos,persistence]")
    with_starts.without = [45, 52]
    scores = scores_of("gaps", "references=[raw,emos,persistence]", "batch_size=4")
    assert scores["left_out"]["forecasts_without_value"] == {"persistence": 2}
    assert scores["warnings"] == [
        "persistence has no value in 2 of 20 forecasts: its own scores and its comparisons are of the others"
    ]
    for name in ("raw", "emos"):
        assert scores["models"][name]["crps"] == pytest.approx(complete["models"][name]["crps"], rel=1e-6)
    assert scores["models"]["persistence"]["crps"] != complete["models"]["persistence"]["crps"]


def test_persistence_without_analyses_at_the_starts_is_left_out(archive, scores_of, emos):
    scores = scores_of("run", f"correctors={{emos: {emos}}}", "references=[raw,persistence]")
    assert list(scores["models"]) == ["raw", "emos"]
    assert scores["warnings"] == [
        "persistence is left out: 0 training forecasts of 48 h have an analysis at start and valid time, and 20 are "
        "needed"
    ]


def test_persistence_of_rain_has_no_probability_below_zero():
    archive = ArchiveWithStarts()
    archive.before, archive.truth = (np.maximum(values - 280, 0) for values in (archive.before, archive.truth))
    years = [(Dates.of_years([2014]), Dates.of_years([2016]))]
    batch = Sample(
        *(torch.zeros(1, 1),) * 3,
        torch.zeros(1, 2, *GRID.shape),
        torch.tensor([archive.starts[45].astype("datetime64[s]").astype(int)]),
        torch.tensor([48]),
    )

    def forecast(*targets):
        task = Task("x", list(targets), list(targets), [48])
        made = Persistence.fit(lambda _: archive, task, years[0][1], years, Domain.of(GRID))
        return made(batch._replace(target=torch.zeros(1, len(targets), *GRID.shape)))

    rain, both, warm = forecast("tp:24h"), forecast("tp:24h", "2t"), forecast("2t")
    assert isinstance(rain, CensoredNormal)
    assert isinstance(both, Patched)
    assert isinstance(warm, Normal)
    below = torch.full((1, 1, *GRID.shape), -1e-6)
    assert (rain.cdf(below) == 0).all()
    assert (warm.cdf(below) > 0).any()
    torch.testing.assert_close(both.mean, torch.cat([rain.mean, warm.mean], 1))


def test_folds_have_spreads_of_their_own():
    """The spread of each fold comes from pairs of which both analyses are on its training dates."""
    archive = ArchiveWithStarts()
    years = [
        (Dates.of_years([2014, 2015]), Dates.of_years([2016])),
        (Dates.of_years([2016, 2015]), Dates.of_years([2014])),
    ]
    made = Persistence.fit(lambda _: archive, TASK, Dates.of_years([2014, 2016]), years, Domain.of(GRID))
    year = archive.starts.astype("datetime64[Y]").astype(int) + 1970
    squared = (archive.truth[:, 1] - archive.before) ** 2
    for spread, held_out in zip(made.spreads, (2016, 2014), strict=True):
        expected = np.sqrt(squared[year != held_out].mean(0))
        np.testing.assert_allclose(spread[0, 0].numpy(), expected, rtol=1e-4)
    batch = Sample(
        *(torch.zeros(2, 1),) * 3, torch.zeros(2, 1, *GRID.shape),
        torch.from_numpy(archive.starts[[3, 45]].astype("datetime64[s]").astype(int)), torch.tensor([48, 48]),
    )  # fmt: skip
    torch.testing.assert_close(made(batch).sigma, torch.stack([made.spreads[1][0], made.spreads[0][0]]))
