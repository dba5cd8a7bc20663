"""An exported corrector forecasts as the corrector does, and a file that is damaged or hostile is refused."""

import hashlib
import json
from dataclasses import asdict

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.explanation.forecast_explanation import explain_forecast
from models.combine import combine
from models.corrector import Corrector
from models.engines.forecast import RawForecast
from models.engines.onnx_engine import OnnxEngine
from models.engines.onnx_export import compare, export
from models.engines.onnx_file import DESCRIPTION, DETAILS, EXPORT_FORMAT, PRODUCER, read_exported
from models.engines.torch_engine import TorchEngine

TASK = Task("toy", ["2t", "msl"], ["2t"], [24, 48], ["lsm"])
RAIN = Task("rain", ["tp"], ["tp"], [24])
GRID = Grid.regular(13, 16)
EMOS = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": False}
MLP = {"_target_": "models.networks.mlp.MLP", "width": 4, "depth": 1}


def saved(toy, path, spec=EMOS, task=TASK, seed=1):
    """A fitted corrector in a file, whose last layer is not zero."""
    torch.manual_seed(seed)
    data = toy(task, GRID, 24)
    made = Corrector(task, GRID, spec, data.static, {"run": "toy"})
    made.fit(data)
    for parameter in made.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter.data, std=0.1)
    made.save(path)
    return path


@pytest.fixture(scope="module")
def exported(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    paths = [saved(toy, folder / f"{seed}.safetensors", MLP, seed=seed) for seed in (1, 2)]
    combine(paths).save(folder / "both.safetensors")
    equality = export(folder / "both.safetensors", folder / "both.onnx")
    return folder / "both.safetensors", folder / "both.onnx", equality


def forecast(toy, members, task=TASK, lead=24):
    """A forecast with a gap."""
    sample = toy(task, GRID, 1, members, seed=members).samples[0]
    ensemble = sample.ensemble.numpy().copy()
    mask = np.ones(ensemble.shape[1:], bool)
    mask[:, 2:4, 5] = False
    ensemble[:, ~mask] = np.nan
    raw = ensemble[:, list(task.target_channels)].astype(np.float64)
    return RawForecast(ensemble, mask, raw, np.datetime64("2020-07-15T00", "s"), lead, tuple(range(members)))


@pytest.mark.parametrize("members", [2, 5, 12])
def test_an_exported_committee_forecasts_as_pytorch(exported, toy, members):
    path, onnx_path, _ = exported
    own, other = OnnxEngine(onnx_path), TorchEngine(Corrector.load(path))
    case = forecast(toy, members, lead=48)
    one, two = own.predict(case), other.predict(case)
    levels, covered = np.array([0.1, 0.5, 0.99]), case.mask[:1]
    for found, expected in (
        (one.quantiles(levels), two.quantiles(levels)), (one.mean()[None], two.mean()[None]),
        (one.std()[None], two.std()[None]),
    ):  # fmt: skip
        np.testing.assert_allclose(found[:, covered], expected[:, covered], rtol=1e-6, atol=1e-4)
    value = np.full((1, 1, 1, 1), 280.0)
    np.testing.assert_allclose(one.cdf(value)[:, covered], two.cdf(value)[:, covered], atol=1e-4)


def test_the_file_describes_the_corrector(exported):
    """And its graph is valid for the checker of ONNX."""
    path, onnx_path, equality = exported
    own, other = OnnxEngine(onnx_path, "name"), TorchEngine(Corrector.load(path))
    for name in ("task", "grid", "meanings", "provenance", "target_grid"):
        assert getattr(own.description, name) == getattr(other.description, name)
    assert (own.description.name, own.description.path) == ("name", onnx_path)
    np.testing.assert_array_equal(own.always, other.always != 0)
    np.testing.assert_array_equal(own.known, other.known != 0)
    details = read_exported(onnx_path).details
    assert details["source"]["sha256"] == TorchEngine(Corrector.load(path), path=path).description.sha256
    assert details["equality"] == json.loads(json.dumps(asdict(equality)))
    assert 0 < equality.largest_difference["2t"] < 0.01
    onnx.checker.check_model(onnx.load(exported[1]))


def test_an_exported_corrector_is_explained_as_pytorch(exported, toy):
    path, onnx_path, _ = exported
    case, task = forecast(toy, 5), TASK
    names, found = list(map(str, task.channels)), []
    for engine in (OnnxEngine(onnx_path), TorchEngine(Corrector.load(path))):
        found.append(explain_forecast(engine.predict, case, GRID, names, task.target_channels, engine.climate))
    one, two = found
    for name, within in {"mean_part": 2e-4, "departure": 1e-3, "usual_change": 2e-4}.items():
        np.testing.assert_allclose(one[name], two[name], atol=within)
    assert two.mean_part.max() > 2e-3
    assert abs(two.corrected_mean - two.raw_mean).max() > 0.05


def test_cells_without_training_values_are_the_raw_ensemble(toy, tmp_path):
    path = saved(toy, tmp_path / "a.safetensors", MLP)
    corrector = Corrector.load(path)
    corrector.normalizer.known[:, 3, 3] = 0
    corrector.save(path)
    export(path, tmp_path / "a.onnx")
    case = forecast(toy, 4)
    found = OnnxEngine(tmp_path / "a.onnx").predict(case)
    assert np.argwhere(found.unchanged).tolist() == [[0, 3, 3]]
    np.testing.assert_allclose(found.mean()[0, 3, 3], case.raw[:, 0, 3, 3].mean(), rtol=1e-6)
    expected = TorchEngine(Corrector.load(path)).predict(case).quantiles(np.array([0.3]))
    covered = case.mask[:1]
    np.testing.assert_allclose(found.quantiles(np.array([0.3]))[:, covered], expected[:, covered], rtol=1e-6)


def test_one_member_and_other_lead_times_are_refused(exported, toy):
    engine = OnnxEngine(exported[1])
    with pytest.raises(InputError, match="has one member"):
        engine.predict(forecast(toy, 1))
    with pytest.raises(InputError, match="lead time 72 h is not one of task toy"):
        engine.predict(forecast(toy, 3, lead=72))


def test_a_distribution_without_numpy_functions_is_refused(toy, tmp_path):
    spec = MLP | {"head": "censored_shifted_gamma", "power": 1}
    with pytest.raises(InputError, match=r"forecasts a censored shifted gamma, and only Normal, .* can be exported"):
        export(saved(toy, tmp_path / "a.safetensors", spec, RAIN), tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()


def test_a_difference_from_pytorch_is_refused(exported):
    """Compared with another corrector, the model differs."""
    path, onnx_path, _ = exported
    corrector = Corrector.load(path)
    with torch.no_grad():
        for parameter in corrector.parameters():
            parameter.add_(0.01)
    with pytest.raises(InputError, match=r"ONNX Runtime and PyTorch differ by up to .* K in 2t"):
        compare(path, corrector, OnnxEngine(onnx_path)._model, (2,))


def written(path, nodes, initializers=(), functions=()):
    """An ONNX file with a description, as a hostile producer writes it."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ensemble", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("mu", TensorProto.FLOAT, None)], list(initializers),
    )  # fmt: skip
    model = helper.make_model(graph, producer_name=PRODUCER, functions=list(functions))
    digest = hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()
    details = {"format": EXPORT_FORMAT, "graph_sha256": digest, "outputs": ["mu"], "distribution": {"kind": "Normal"}}
    for key, value in ((DESCRIPTION, "{}"), (DETAILS, json.dumps(details))):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def external():
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    return tensor


def loop():
    body = helper.make_graph([], "b", [], [])
    return helper.make_node("If", ["c"], ["mu"], then_branch=body, else_branch=body)


PLAIN = helper.make_node("Identity", ["ensemble"], ["mu"])
HOSTILE = {
    "refers to another file": {"nodes": [PLAIN], "initializers": [external()]},
    "holds a loop or a branch": {"nodes": [loop()]},
    "holds an operation of the domain 'evil'": {
        "nodes": [helper.make_node("Run", ["ensemble"], ["mu"], domain="evil")]
    },
    "holds functions": {
        "nodes": [PLAIN],
        "functions": [helper.make_function("f", "f", [], [], [], [helper.make_opsetid("", 20)])],
    },
    "has weights that are not numbers": {
        "nodes": [PLAIN],
        "initializers": [
            helper.make_tensor("w", TensorProto.FLOAT, [4], np.float32([0, np.nan, 0, 0]).tobytes(), True)
        ],
    },
    "is not a valid exported corrector": {"nodes": [PLAIN]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_by_one_sentence(what, tmp_path):
    path = written(tmp_path / "a.onnx", **HOSTILE[what])
    with pytest.raises(InputError, match=rf"^{path} {what}"):
        OnnxEngine(path)


def test_a_damaged_file_is_refused(exported, tmp_path):
    """Any cut and any changed byte: the hash covers the graph, and the rest is checked as it is read."""
    content = exported[1].read_bytes()
    path, draw = tmp_path / "a.onnx", np.random.default_rng(1)
    for at in draw.integers(20, len(content), 40).tolist():
        path.write_bytes(content[:at])
        with pytest.raises(InputError, match=str(path)):
            OnnxEngine(path)
    graph_end = len(content) * 9 // 10
    for at in draw.integers(40, graph_end, 40).tolist():
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=str(path)):
            read_exported(path)


def test_another_file_is_named(tmp_path):
    for content in (b"", b"nothing", b"PK\x03\x04abcd", b"\x08\x0a\x12\x07pytorch\x1a\x00"):
        (tmp_path / "a.onnx").write_bytes(content)
        with pytest.raises(InputError, match=r"a\.onnx is .*"):
            read_exported(tmp_path / "a.onnx")
        with pytest.raises(InputError, match="there is no corrector"):
            read_exported(tmp_path / "b.onnx")
