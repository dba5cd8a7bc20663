"""The extrapolation counts the layers and halos of the shipped network, and docs/scaling.md has its table."""

from pathlib import Path

import pytest

from benchmarks.mesh.extrapolation import efficiency_table, halo_size, layers_of
from benchmarks.mesh.traffic import minimal_traffic
from benchmarks.mesh.training_step import TrainingStep
from data_pipeline.grid import Grid
from models.parallel.mesh import Mesh

DOCUMENT = Path(__file__).parents[3] / "docs" / "scaling.md"
GRID = Grid.regular(65, 128)


def test_layers_and_parameters_agree_with_the_shipped_network():
    layers, parameters = layers_of(16)
    assert parameters == sum(p.numel() for p in TrainingStep(Mesh.single(), GRID).model.parameters())
    weights = sum((layer.inputs * layer.kernel**2 + 1) * layer.outputs for layer in layers if layer.kernel)
    assert parameters == weights + sum(2 * layer.outputs for layer in layers if layer.kernel == 3), (
        "the norms have the other parameters"
    )


@pytest.mark.parametrize(("bands", "sectors", "rank"), [(4, 1, 1), (1, 4, 2), (4, 4, 5)])
def test_halos_agree_with_those_of_an_inner_tile(bands, sectors, rank):
    """64 rows and 128 columns divide evenly, so inner tiles send as many cells as they receive."""
    one = TrainingStep(Mesh.single(), GRID)
    expected = minimal_traffic(one, one.model, GRID, bands, sectors)[rank]
    cells = [
        (layer, halo_size(layer, 64 // bands // 2**layer.level, 128 // sectors // 2**layer.level, bands, sectors))
        for layer in layers_of(16)[0]
        if layer.kernel != 1
    ]
    assert sum(4 * layer.inputs * count for layer, count in cells) == pytest.approx(expected["halo"], rel=0.03)
    back = sum(4 * layer.inputs * count * layer.differentiated for layer, count in cells)
    assert back == pytest.approx(expected["halo gradient"], rel=0.03)


def test_the_table_in_the_docs_is_up_to_date():
    assert efficiency_table() in DOCUMENT.read_text(), f"docs/scaling.md should have\n{efficiency_table()}"
