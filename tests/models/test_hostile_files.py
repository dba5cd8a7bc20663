"""Corrector files that were changed on purpose: refused by name, without running or allocating anything."""

import json
import os
import pickle
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models import corrector_file
from models.corrector import Corrector
from models.corrector_file import plain_json, read_header

TASK, GRID = Task("toy", ["2t"], ["2t"], [24]), Grid.regular(5, 8)
MLP = {"_target_": "models.networks.mlp.MLP", "width": 4, "depth": 1}


def sound():
    """Return header and tensors of a sound corrector file."""
    torch.manual_seed(0)
    corrector = Corrector(TASK, GRID, MLP, torch.zeros(3, *GRID.shape))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound"
        corrector.save(path)
        content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


HEADER, DATA = sound()
DESCRIPTION = json.loads(HEADER["__metadata__"]["deepweather"])


def leave(path, header=HEADER, data=DATA, text=None, length=None):
    text = json.dumps(header).encode() if text is None else text
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def described(path, **changes):
    metadata = {"deepweather": json.dumps(DESCRIPTION | changes)}
    return leave(path, HEADER | {"__metadata__": metadata})


class Trap:
    def __reduce__(self):
        return os.system, ("touch executed",)


def zipped(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", pickle.dumps(Trap()))
    return path


NOTHING = {"shape": [0], "data_offsets": [0, 0]}
FIRST = next(name for name in HEADER if name != "__metadata__")


def with_tensor(path, **changes):
    return leave(path, HEADER | {FIRST: HEADER[FIRST] | changes})


def not_finite(name, number):
    def write(path):
        first, _ = HEADER[name]["data_offsets"]
        values = bytearray(DATA)
        values[first : first + 4] = torch.tensor(number).numpy().tobytes()
        return leave(path, data=bytes(values))

    return write


HOSTILE = {
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Trap())) and path, "is not a"),
    "zip": (zipped, "is a zip archive"),
    "torch": (lambda path: torch.save({"a": Trap()}, path) or path, "is a zip archive"),
    "empty": (lambda path: path.write_bytes(b"") or path, "is empty"),
    "length": (lambda path: leave(path, length=2**62), "header too large"),
    "deep": (lambda path: leave(path, text=b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "recursion limit"),
    "brackets": (lambda path: leave(path, text=b'{"a":[' + b"[]," * 10**6 + b"[]]}"), "is not a complete"),
    "twice": (lambda path: leave(path, text=b'{"a":1,"a":2}'), "is not a complete safetensors file"),
    "list": (lambda path: leave(path, text=b"[1]"), "is not a complete safetensors file"),
    "name": (lambda path: leave(path, HEADER | {"a\x1b": HEADER[FIRST] | NOTHING}), "which is no name in a model"),
    "overlap": (lambda path: leave(path, HEADER | {"other": HEADER[FIRST]}), "invalid offset for tensor"),
    "shape": (lambda path: with_tensor(path, shape=[2**40, 2**40]), "overflow"),
    "negative": (lambda path: with_tensor(path, shape=[-1]), "expected usize"),
    "dimensions": (lambda path: with_tensor(path, shape=[1] * 99), "invalid shape, data type, or offset"),
    "type": (lambda path: with_tensor(path, dtype="OBJECT"), "unknown variant `OBJECT`"),
    "offsets": (lambda path: with_tensor(path, data_offsets=[0, 2**47]), "invalid shape, data type, or offset"),
    "longer": (lambda path: leave(path, data=DATA + b"more"), "file not fully covered"),
    "no corrector": (lambda path: leave(path, HEADER | {"__metadata__": {}}), "holds tensors but no corrector"),
    "os": (lambda path: described(path, model={"_target_": "os.system", "command": "true"}), "os.system is"),
    "foreign": (lambda path: described(path, model={"_target_": "subprocess.Popen"}), "subprocess.Popen is"),
    "function": (lambda path: described(path, model={"_target_": "models.correct.os.system"}), "does not exist"),
    "no model": (lambda path: described(path, model={"_target_": "models.corrector.build_model"}), "is not a model"),
    "part": (lambda path: described(path, model=MLP | {"head": {"_target_": "os.system"}}), ""),
    "layers": (lambda path: described(path, model=MLP | {"depth": 10**7}), "describes a model of more than"),
    "missing": (lambda path: described(path, model=MLP | {"cell_embedding": 1}), "is missing in the file"),
    "wide": (lambda path: described(path, model=MLP | {"width": 10**9}), "in the file and"),
    "envelope": (lambda path: described(path, envelope={"channels": {"2t": 1}}), "its envelope is invalid"),
    "provenance": (lambda path: described(path, provenance=3), "has an invalid description"),
    "no JSON": (lambda path: leave(path, HEADER | {"__metadata__": {"deepweather": "{"}}), "has an invalid descr"),
    "no object": (lambda path: leave(path, HEADER | {"__metadata__": {"deepweather": "[1]"}}), "has an invalid descr"),
    "no task": (lambda path: described(path, task=None), "has an invalid description"),
    "nan": (not_finite("normalizer.scale", float("nan")), "weights that are not finite (normalizer.scale)"),
    "inf": (not_finite("normalizer.location", float("inf")), "weights that are not finite (normalizer.location)"),
    "static": (not_finite("static", float("nan")), "weights that are not finite (static)"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_by_name(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, sentence = HOSTILE[case]
    path = write(tmp_path / "hostile.safetensors")
    before, size = sorted(tmp_path.iterdir()), path.stat().st_size
    tracemalloc.start()
    with pytest.raises(InputError, match="hostile") as caught:
        Corrector.load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 700
    assert sorted(tmp_path.iterdir()) == before
    assert peak < 20 * size + 2**24


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner, max_size=4) | strategies.dictionaries(strategies.text(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=max(50, settings().max_examples // 2))
@given(strategies.data())
def test_a_changed_header_is_sound_or_refused_by_name(tmp_path_factory, data):
    """Any part of the header becomes any JSON value, or some of its bytes change."""
    path = tmp_path_factory.getbasetemp() / "mutated"
    if data.draw(strategies.booleans()):
        text = bytearray(json.dumps(HEADER).encode())
        for _ in range(data.draw(strategies.integers(1, 4))):
            text[data.draw(strategies.integers(0, len(text) - 1))] = data.draw(strategies.integers(0, 255))
        leave(path, text=bytes(text))
    elif data.draw(strategies.booleans()):
        name = data.draw(strategies.sampled_from([*HEADER]))
        leave(path, HEADER | {name: data.draw(JSON)})
    else:
        described(path, **{data.draw(strategies.sampled_from([*DESCRIPTION])): data.draw(JSON)})
    refusal = None
    try:
        Corrector.load(path)
    except InputError as error:
        refusal = str(error)
    assert refusal is None or "mutated" in refusal


@given(strategies.binary(max_size=300))
def test_any_bytes_are_refused_by_name(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    with pytest.raises(InputError, match="bytes"):
        read_header(path)


def levels(value):
    """Return how deep lists and objects lie inside each other."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(levels, inner), default=0) + isinstance(value, dict | list)


@settings(max_examples=max(200, settings().max_examples))
@given(JSON.filter(lambda value: "NaN" not in (text := json.dumps(value)) and "Infinity" not in text))
def test_json_is_read_unless_it_has_too_many_parts_or_levels(value):
    limits = {"MOST_BRACKETS": 4, "MOST_VALUES": 5, "DEEPEST": 2}
    text = json.dumps(value, ensure_ascii=False)
    brackets, commas = sum(text.count(each) for each in "[{"), text.count(",")
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(corrector_file, name, limit)
        try:
            found = plain_json(text)
        except ValueError:
            assert brackets > 4 or commas > 5 or levels(value) > 2
        else:
            assert brackets <= 4
            assert commas <= 5
            assert levels(value) <= 2
            assert found == value
