"""The option `conformal` of `correct`: the written members, and what it refuses."""

import json
from itertools import product

import numpy as np
import pytest
from correction_runs import random_corrector, write_members
from grib_parts import GRID
from scipy import stats

from data_pipeline.common.identity import sha256_of
from data_pipeline.formats.open import ensemble_fields
from data_pipeline.task import Task, Variable
from evaluation.monitoring.verification import has_conformal_layer
from models.members.conformal import ConformalLayer, band_weights

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")
MEMBERS = 5
MOVES = {"south": 0.0, "tropics": 0.5, "north": 2.0}
NOMINAL = stats.norm.ppf([0.1, 0.5, 0.9])


@pytest.fixture
def files(tmp_path):
    """A forecast at two lead times, an EMOS, and a layer that stretches the spread by 1.5 and moves 24 h by `MOVES`."""
    random = np.random.default_rng(1)
    fields = {
        ("2t", 20200101, lead, number): 280 + 8 * random.standard_normal(GRID.shape)
        for lead, number in product((24, 48), range(1, MEMBERS + 1))
    }
    write_members(tmp_path / "in.grib", fields)
    corrector = random_corrector(Task("t2m", ["2t"], ["2t"], [24, 48]), size=0)
    corrector.save(tmp_path / "emos.safetensors")
    layer(tmp_path)
    return tmp_path


def layer(folder, name="conformal.json", **other):
    scores = {("2t", 24): {name: 1.5 * NOMINAL + move for name, move in MOVES.items()}}
    made = ConformalLayer(sha256_of(folder / "emos.safetensors"), 0.8, 0.1, scores, {("2t", 24): 10})
    (folder / name).write_text(json.dumps(made.to_json() | other))


def members(path):
    """(lead time, member, H, W)."""
    fields = ensemble_fields(path, [Variable("2t")], [24, 48])
    found = np.empty((2, MEMBERS, 1, *GRID.shape), np.float64)
    for lead in range(2):
        fields.read(fields.cells[0, lead], found[lead])
    return found[:, :, 0]


def run(command, folder, output, *more):
    return command(
        folder, "correct", "corrector=emos.safetensors", "input=in.grib", f"output={output}", "device=cpu", *more
    )


def test_members_are_those_of_the_moved_normal_in_the_same_order(files, command):
    """EMOS forecasts a normal, so that the moved members are an affine function of the others in each cell."""
    assert run(command, files, "plain.grib").code == 0
    ended = run(command, files, "moved.grib", "conformal=conformal.json")
    assert ended.code == 0, ended.stderr
    assert "the conformal layer has no verified forecast of 2t +48 h yet, and does not move them" in ended.stdout
    raw, plain, moved = (members(files / name) for name in ("in.grib", "plain.grib", "moved.grib"))
    np.testing.assert_array_equal(moved[1], plain[1])
    latitudes = np.broadcast_to(GRID.cell_latitudes, GRID.shape)
    move = sum(share * MOVES[name] for name, share in band_weights(latitudes).items())
    order = np.sort(plain[0], axis=0)
    spread = (order[-1] - order[0]) / (2 * stats.norm.ppf(0.9))
    mean = order[2]
    expected = mean + move * spread + 1.5 * (order - mean)
    np.testing.assert_allclose(np.sort(moved[0], axis=0), expected, atol=5e-3 * spread.max())
    np.testing.assert_array_equal(raw[0].argsort(0), moved[0].argsort(0))
    own = sha256_of(files / "emos.safetensors")
    assert [has_conformal_layer(files / name, own) for name in ("moved.grib", "plain.grib")] == [True, False]


def test_wrong_values_and_layers_of_another_corrector_are_one_sentence(files, command):
    layer(files, "other.json", corrector="0" * 64)
    for option, sentence in {
        "other.json": "was made for another corrector", "none.json": "there is no file none.json",
        "in.grib": "is no conformal layer", "3": "must be the path of",
        "[conformal.json,conformal.json]": "names two layers of one corrector",
    }.items():  # fmt: skip
        ended = run(command, files, "moved.grib", f"conformal={option}")
        assert (ended.code, len(ended.stderr.splitlines())) == (2, 1)
        assert sentence in ended.stderr
        assert not (files / "moved.grib").exists()
