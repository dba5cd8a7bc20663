import os
import shutil

import numpy as np
import pytest

from data_pipeline.errors import InputError
from data_pipeline.grib.cache import table_of
from data_pipeline.grib.table import Table


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(writer, tmp_path):
    (tmp_path / "data").mkdir()
    return writer.forecast(tmp_path / "data" / "output.sfc.20180104", ["2t", "z@500"])


@pytest.fixture
def scans(monkeypatch):
    """The files that were scanned, one entry for each time."""
    found, original = [], Table.of
    monkeypatch.setattr(Table, "of", lambda path: found.append(path) or original(path))
    return found


def same(one, other):
    return one.path == other.path and one.kinds == other.kinds and (one.records == other.records).all()


def test_a_file_is_scanned_once(cache, file, scans):
    first, second = table_of(file), table_of(file)
    assert len(scans) == 1
    assert same(first, second)
    assert same(first, Table.of(file))


def test_nothing_is_left_beside_the_data(cache, file):
    table_of(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    (stored,) = (path for path in cache.rglob("*") if path.is_file())
    assert stored.suffix == ".npz"


def test_the_cache_holds_no_pickles(cache, file):
    table_of(file)
    (stored,) = cache.rglob("*.npz")
    with np.load(stored, allow_pickle=False) as content:
        assert {name: content[name].dtype.hasobject for name in content} == dict.fromkeys(content, False)


@pytest.mark.parametrize("place", [30, -30])
def test_new_bytes_of_old_size_and_date_are_noticed(cache, file, scans, place):
    before, status = table_of(file), file.stat()
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = table_of(file)
    assert len(scans) == 2
    assert same(before, after)


def test_a_file_that_was_written_again_is_scanned_again(cache, file, writer, scans):
    assert len(table_of(file).records) == 36
    writer.forecast(file, ["2t"])
    assert len(table_of(file).records) == 18
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    table_of(file)
    assert len(scans) == 3


def test_a_copy_has_a_table_of_its_own(cache, file, scans):
    table_of(file)
    copy = shutil.copy2(file, file.with_name("copy"))
    assert table_of(copy).path == copy
    assert len(scans) == 2


def test_a_relative_path_finds_the_same_table(cache, file, scans, monkeypatch):
    table_of(file)
    monkeypatch.chdir(file.parent)
    relative = type(file)(file.name)
    assert table_of(relative).path == relative
    assert len(scans) == 1


@pytest.mark.parametrize("damage", ["empty", "short", "rubbish", "flipped", "folder", "other arrays", "other rows"])
def test_a_damaged_cache_is_made_again(cache, file, scans, damage):
    good = table_of(file)
    (stored,) = cache.rglob("*.npz")
    content = stored.read_bytes()
    with np.load(stored) as arrays:
        arrays = dict(arrays)
    stored.unlink()
    if damage == "folder":
        stored.mkdir()
    elif damage == "other arrays":
        np.savez(stored, identity=arrays["identity"])
    elif damage == "other rows":
        np.savez(stored, **{**arrays, "records": np.zeros(3)})
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        stored.write_bytes(
            {"empty": b"", "short": content[:middle], "rubbish": b"rubbish" * 50, "flipped": flipped}[damage]
        )
    assert same(table_of(file), good)
    assert len(scans) == 2
    assert same(table_of(file), good)
    assert len(scans) == (3 if damage == "folder" else 2)


def test_a_cache_that_cannot_be_written_does_not_matter(file, scans, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("not a folder")
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "taken"))
    assert len(table_of(file).records) == len(table_of(file).records) == 36
    assert len(scans) == 2


def test_where_the_cache_lies(file, tmp_path, monkeypatch):
    monkeypatch.delenv("DEEPWEATHER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    table_of(file)
    assert len(list((tmp_path / "home" / ".cache" / "deepweather").rglob("*.npz"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    table_of(file)
    assert len(list((tmp_path / "xdg" / "deepweather").rglob("*.npz"))) == 1


def test_a_file_that_cannot_be_read_is_refused_by_name(cache, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nothing \(No such file"):
        table_of(tmp_path / "nothing")


def test_a_damaged_file_leaves_nothing_in_the_cache(cache, file):
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match="cut off"):
        table_of(file)
    assert not list(cache.rglob("*.npz"))
