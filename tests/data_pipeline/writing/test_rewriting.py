import errno
import itertools
import os
import threading
from datetime import datetime

import eccodes
import numpy as np
import pytest
from correction_runs import rewrite_fields

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.open import open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder, Message, rewriting

GRID = Grid.regular(5, 8)
T2M = Variable("2t")


def contents(plain, path):
    return [eccodes.codes_get_message(handle) for handle in plain.handles(path)]


def precision(handle):
    """The largest possible packing error of a message."""
    largest = max(abs(eccodes.codes_get(handle, key, float)) for key in ("minimum", "maximum"))
    binary, decimal, bits = (
        eccodes.codes_get_long(handle, key) for key in ("binaryScaleFactor", "decimalScaleFactor", "bitsPerValue")
    )
    return (2.0**binary / 10.0**decimal if bits else 0) + largest * 2**-20


def one_more(source):
    """Return a correction that adds one to every 2t read by `open_ensemble`."""
    fields = open_ensemble(source, chunks=None)["2t"]

    def correction(message):
        if message.variable != T2M:
            return None
        where = {"init_time": message.init_time, "lead_time": message.lead_time, "number": message.number}
        return fields.sel(where).values + 1

    return correction


@pytest.fixture
def source(writer, tmp_path):
    return writer.forecast(tmp_path / "input", ("2t", "z@500"), years=(1998,))


@pytest.fixture
def target(tmp_path):
    """A file to write; no other file may be left in its folder."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "corrected"


def files_beside(target):
    return [path.name for path in target.parent.iterdir()]


def test_the_arguments_of_a_correction(source, target):
    asked = []
    assert rewrite_fields(source, target, asked.append) == 0
    assert target.read_bytes() == source.read_bytes()
    assert len(asked) == 18
    assert asked[0] == Message(T2M, datetime(1998, 1, 4), 0, 1)
    assert asked[-1] == Message(Variable("z", 500), datetime(1998, 1, 4), 48, 3)


def test_corrected_values_are_read_back_and_other_messages_are_copied(source, target, plain):
    assert rewrite_fields(source, target, one_more(source)) == 9
    before, after = (open_ensemble(path).load() for path in (source, target))
    np.testing.assert_allclose(after["2t"], before["2t"] + 1, atol=1e-3)
    same = [old == new for old, new in zip(contents(plain, source), contents(plain, target), strict=True)]
    assert same == [False] * 9 + [True] * 9
    assert files_beside(target) == [target.name]


def correctable(handle):
    """Whether a message is on a grid that is read, at the surface or on whole hPa, and no climate or statistic."""
    climate = eccodes.codes_is_defined(handle, "dataType") and eccodes.codes_get(handle, "dataType") == "hcmean"
    statistic = climate or eccodes.codes_get(handle, "productDefinitionTemplateNumber") in (9, 10, 12)
    return Layout.of(handle).readable and eccodes.codes_get(handle, "typeOfLevel") != "isobaricInPa" and not statistic


def test_every_real_message_keeps_every_key(real_files, plain, tmp_path):
    """Read by ecCodes alone: all keys of six namespaces, missing values, corrected values."""
    replaced = 0
    for path in real_files:
        given = [
            np.random.default_rng(k).normal(280, 10, Layout.of(handle).grid.shape)
            for k, handle in enumerate(plain.handles(path))
            if correctable(handle)
        ]
        fields, wanted = iter(given), iter(given)
        assert rewrite_fields(path, tmp_path / path.name, lambda _, fields=fields: next(fields)) == len(given)
        pairs = zip(plain.handles(path), plain.handles(tmp_path / path.name), strict=True)
        for k, (old, new) in enumerate(pairs):
            field = next(wanted) if correctable(old) else None
            if k % (1 + len(given) // 50):
                continue  # only part of long files
            old_keys, new_keys = plain.keys(old), plain.keys(new)
            for keys in (old_keys, new_keys):
                keys.pop("ls.packingType")
            assert old_keys == new_keys, path.name
            if field is None:
                assert eccodes.codes_get_message(old) == eccodes.codes_get_message(new)
                continue
            before, after = plain.values(old), plain.values(new)
            np.testing.assert_array_equal(np.isnan(before), np.isnan(after))
            expected = np.where(np.isnan(before), np.nan, Layout.of(new).store(field))
            np.testing.assert_allclose(after, expected, rtol=0, atol=precision(new))
            if field.size > 1 and (bits := eccodes.codes_get_long(old, "bitsPerValue")):
                assert eccodes.codes_get_long(new, "bitsPerValue") == bits
            replaced += 1
    assert replaced > 300


@pytest.mark.parametrize(("edition", "missing"), [(1, True), (2, False), (2, True)])
def test_a_constant_field_can_become_variable_and_the_reverse(tmp_path, target, edition, missing):
    field = np.random.default_rng(0).normal(0, 1e-3, GRID.shape)
    constant = np.zeros(GRID.shape)
    if missing:
        field[0, 0] = constant[0, 0] = np.nan
    encoder = Encoder(GRID, edition=edition, typeOfLevel="surface", level=0)
    for old, new in ((constant, field), (field, constant)):
        (tmp_path / "input").write_bytes(encoder.encode(old, shortName="skt"))
        assert rewrite_fields(tmp_path / "input", target, lambda message, new=new: new) == 1
        np.testing.assert_allclose(open_ensemble(target).skt.values.squeeze(), new, atol=1e-6)


def test_a_field_of_the_wrong_shape_or_with_new_missing_values_is_refused(source, target):
    for field, kind, sentence in (
        (np.zeros((8, 5)), InputError, r"Message\(.*'2t'.* has shape \(8, 5\), the message has shape \(5, 8\)"),
        *((np.full((5, 8), value), ValueError, "is not finite where the message") for value in (np.nan, np.inf)),
    ):
        with pytest.raises(kind, match=sentence):
            rewrite_fields(source, target, lambda message, field=field: field)
        assert not files_beside(target)


def test_messages_keep_their_order_when_threads_end_in_another(source, target, monkeypatch):
    """The first message is encoded only when the second is done."""
    rewrite_fields(source, target, one_more(source))
    expected = target.read_bytes()
    encode, second, numbers = rewriting.with_values, threading.Event(), itertools.count()

    def late(*arguments):
        number = next(numbers)
        if number == 0:
            assert second.wait(30)
        found = encode(*arguments)
        if number == 1:
            second.set()
        return found

    monkeypatch.setattr(BUDGET, "_total", 2)
    monkeypatch.setattr(rewriting, "with_values", late)
    rewrite_fields(source, target, one_more(source))
    assert target.read_bytes() == expected


# Checks of the written file


def one_value(handle, values):
    eccodes.codes_set_array(handle, "values", np.where(np.arange(values.size) == 7, values + 0.1, values))


def eight_bits(handle, values):
    eccodes.codes_set_long(handle, "bitsPerValue", 8)
    eccodes.codes_set_array(handle, "values", values)


def header(key, value):
    return lambda handle, _: eccodes.codes_set(handle, key, value)


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        (one_value, RuntimeError, r"the values of Message\(.*differ from the written values when read back"),
        (eight_bits, RuntimeError, r"the values of Message\(.*differ from the written values when read back"),
        *(
            (header(*key), InputError, r"the header of Message\(.* changed")
            for key in [("number", 9), ("dataDate", 19980105), ("Ni", 20)]
        ),
    ],
)
def test_a_wrongly_written_message_is_noticed(source, target, monkeypatch, fault, kind, sentence):
    packed = eccodes.codes_set_double_array

    def at_fault(handle, key, values):
        packed(handle, key, values)
        fault(handle, values)

    correction = one_more(source)
    monkeypatch.setattr(eccodes, "codes_set_double_array", at_fault)
    with pytest.raises(kind, match=sentence):
        rewrite_fields(source, target, correction)
    assert not files_beside(target)


def test_a_file_that_differs_when_read_back_is_noticed(source, target, monkeypatch):
    scan = rewriting.scan_messages

    def damaged(path):
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(content)
        return scan(path)

    check = rewriting._check_file
    monkeypatch.setattr(
        rewriting, "_check_file", lambda partial, *rest: (list(damaged(partial)), check(partial, *rest))
    )
    with pytest.raises(RuntimeError, match="corrected differs from the written bytes when read back"):
        rewrite_fields(source, target, one_more(source))
    assert not files_beside(target)


# Wrong input


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_input_is_never_overwritten(source, tmp_path, monkeypatch, link):
    content, target = source.read_bytes(), tmp_path / "link"
    monkeypatch.chdir(tmp_path)
    if link:
        link(source, target)
    for same in [target] if link else [source, f"../{tmp_path.name}/input"]:
        with pytest.raises(InputError, match="is the file to read; name another file to write"):
            rewrite_fields(source, same, one_more(source))
        assert source.read_bytes() == content


def test_folders_missing_files_and_files_that_are_cut_off_are_refused(source, target):
    with pytest.raises(InputError, match="is a folder; name a file to write"):
        rewrite_fields(source, target.parent, lambda message: None)
    with pytest.raises(InputError, match=r"cannot read .*nothing"):
        rewrite_fields(source.with_name("nothing"), target, lambda message: None)
    source.write_bytes(source.read_bytes()[:-1])
    with pytest.raises(InputError, match="input is cut off"):
        rewrite_fields(source, target, lambda message: None)
    assert not files_beside(target)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (KeyError("no such member"), KeyError, "no such member"),
        (OSError(errno.ENOSPC, "full"), InputError, "no space left"),
    ],
)
def test_an_error_and_a_disk_that_fills_up_leave_the_former_file(source, target, error, kind, words):
    def correction(message):
        if message.number == 3:
            raise error

    target.write_bytes(b"from an earlier run")
    with pytest.raises(kind, match=words):
        rewrite_fields(source, target, correction)
    assert files_beside(target) == [target.name]
    assert target.read_bytes() == b"from an earlier run"
