"""Scores on a mesh equal those of one process, however forecasts and cells are distributed."""

import math
from dataclasses import replace

import forks
import numpy as np
import pytest
import torch
from conftest import ROOT
from equal_runs import check_equal_scores, read_scores
from grib_parts import OPTIONS, write_archive
from ranks import run_on_ranks
from torch.utils.data import Dataset

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import Threshold
from evaluation.regions import region_weights
from evaluation.run.shown_cases import show_forecast
from evaluation.scores import all_scores, default_scores
from evaluation.scoring.scoring import ScoringOptions, score_models
from models.corrector import Corrector
from models.distribution import Normal
from models.parallel.mesh import Mesh, arrange_mesh
from models.statistical.raw import Raw

GRID = Grid.regular(9, 14)
TASK = Task("toy", ["msl", "2t"], ["2t", "msl"], [24, 48])
THRESHOLDS = ((Threshold(">", 279.0),), (Threshold("<", 279.0),))


class Part(Dataset):
    """This rank's tile of every sample, in double precision, rounded so that many members equal the truth."""

    def __init__(self, dataset, domain):
        self.dataset, self.domain = dataset, domain
        self.task, self.grid, self.members = dataset.task, dataset.grid, dataset.members

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        sample, cut = self.dataset[index], self.domain.cut
        return sample._replace(
            ensemble=cut(sample.ensemble.double().round()),
            static=cut(sample.static.double()),
            mask=cut(sample.mask),
            target=cut(sample.target.double().round()),
        )


def with_holes(data):
    """Remove the analysis or a member in some cells, at the edges of tiles and inside."""
    for sample, (row, column) in zip(data.samples, [(0, 0), (4, 6), (5, 7), (8, 13)], strict=False):
        sample.target[0, row, column] = math.nan
        sample.mask[1, column % 9, row] = False
    return data


def normal(batch):
    """A forecast without parameters."""
    mean = batch.ensemble.mean(1)[:, [1, 0]]
    return Normal(mean - 0.5, torch.ones_like(mean))


def score_on(mesh, data, oracle, land, scores):
    """The scoreboard, and the example of the report, on a mesh."""
    domain = mesh.domain(GRID)
    emos = Corrector(TASK, domain, {"_target_": "models.statistical.emos.EMOS"}, data.static).double().eval()
    models = {"raw": Raw(TASK, domain), "normal": normal, "emos": emos}
    part = Part(data, domain)
    options = ScoringOptions(
        batch_size=2, seed=3, member_counts=(2, 3, 5), written=("normal", "emos"), scores=scores, thresholds=THRESHOLDS
    )
    board = score_models(models, part, region_weights(GRID, land), oracle and Part(oracle, domain), options, mesh)
    with torch.no_grad():
        return board, show_forecast(board, part, 1, 1, models["raw"], models["emos"], domain)


def arrays_of(board):
    """All arrays of a scoreboard, by name."""
    found = {"init_times": board.init_times, "lead_times": board.lead_times}
    tallies = board.tallies | {f"{name} as written": tally for name, tally in board.written.items()}
    for size, some in board.by_member_count.items():
        tallies |= {f"{name} {size}": tally for name, tally in some.items()}
    for name, tally in (tallies | ({"oracle": board.oracle} if board.oracle else {})).items():
        for kind in ("per_forecast", "per_cell"):
            for score, mean in getattr(tally, kind).items():
                found |= {f"{name} {kind} {score} total": mean.total, f"{name} {kind} {score} weight": mean.weight}
    return found


def shown(example):
    """All numbers of a forecast of the report, by name."""
    plumes = {f"plume {k} {key}": v for k, plume in enumerate(example.plumes) for key, v in vars(plume).items()}
    return {key: value for key, value in vars(example).items() if key not in ("plumes", "gain")} | plumes


def results_on(mesh, forecasts, oracle, joint=False):
    """Results of a mesh, on its first rank: the arrays of the scoreboard, and the example of the report."""
    land = np.linspace(0, 1, 9 * 14).reshape(GRID.shape)
    scores = [*default_scores(), all_scores()["fss"], *(one for one in all_scores().values() if joint and one.joint)]
    board, example = score_on(mesh, forecasts, oracle, land, scores)
    return None if mesh.rank else arrays_of(board) | shown(example)


def results_on_rank(rank, cases):
    return [results_on(arrange_mesh(*shape), *data) for shape, data in cases]


def test_scores_are_those_of_one_process(toy):
    """With forecasts, bands and sectors divided, and with ranks that have no forecast.

    Whole starts and blocks of 4 x 4 cells stay on one rank: bands of 4 and 5 rows. Scores are computed from the arrays.
    """
    data, few = with_holes(toy(TASK, GRID, 7)), toy(TASK, GRID, 2)
    data.samples = [one._replace(init_time=data[k // 2].init_time) for k, one in enumerate(data.samples)]
    few.samples[1] = few[1]._replace(init_time=few[0].init_time)
    oracle = toy(replace(TASK, inputs=TASK.targets), GRID, 8, members=9, seed=3)
    oracle.samples = [oracle.samples[k] for k in (7, 5, 1, 2)]
    four, two = [((2, 2, 1), (data, oracle, True))], [((1, 1, 2), (data, oracle)), ((2, 1, 1), (few, None))]
    whole = [results_on(Mesh.single(), *forecasts) for _, forecasts in four + two]
    joint = [values for name, values in whole[0].items() if "energy_score_lead_times total" in name and "raw" in name]
    assert all(np.nansum(abs(values)) > 0 for values in joint)
    assert joint
    many = run_on_ranks(4, results_on_rank, four)[0] + run_on_ranks(2, results_on_rank, two)[0]
    for found, expected in zip(many, whole, strict=True):
        assert list(found) == list(expected)
        for key, value in expected.items():
            if isinstance(value, float | np.ndarray):
                size = np.nanmax(np.abs(value)) if np.size(value) else 0
                np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-12 * size, err_msg=key)
            else:
                assert found[key] == value, key


@pytest.fixture(scope="module")
def project(tmp_path_factory, command):
    """A folder with an archive, EMOS and its scores by one process."""
    folder = tmp_path_factory.mktemp("project")
    write_archive(folder)
    options = [*OPTIONS, f"data.path={folder}"]
    scoring = ["evaluate", "correctors={emos: emos/corrector.safetensors}", "member_counts=[2,4]"]
    for verb in (["train", "model=emos", "model.shared=false"], scoring):
        ended = command(folder, *verb, *options, f"run_dir={'emos' if verb[0] == 'train' else 'one'}")
        assert ended.code == 0, ended.stderr
    return folder


def test_the_command_starts_its_ranks_and_its_scores_are_reused_on_any_mesh(project, command):
    """Every rank reads its tile. Members are read in single precision, so their spread has five digits."""
    options = [*OPTIONS, f"data.path={project}", "run_dir=two", "member_counts=[2,4]"]
    options.append("correctors={emos: emos/corrector.safetensors}")
    ended = forks.run([ROOT / "scripts/deepweather.py", "evaluate", "mesh=[1,2]", *options], cwd=project)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("forecasts of 4 members") == ended.stdout.count("wrote two/scores.json") == 1
    check_equal_scores(read_scores(project / "two"), read_scores(project / "one"), 1e-5)
    files = [{path.name for path in (project / run).rglob("*") if path.is_file()} for run in ("one", "two")]
    assert files[0] == files[1]
    again = command(project, "evaluate", *options)
    assert "nothing was done" in again.stdout
