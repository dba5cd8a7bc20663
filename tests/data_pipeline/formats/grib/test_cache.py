import json
import os
import shutil
import subprocess
import sys
import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.cache import index_files, table_of, tables_of
from data_pipeline.formats.grib.table import RECORD, Table


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
    """The scanned files, with one entry per scan."""
    found, original = [], Table.of
    monkeypatch.setattr(Table, "of", lambda path: found.append(path) or original(path))
    return found


def equal_tables(one, other):
    return one.path == other.path and one.kinds == other.kinds and (one.records == other.records).all()


def test_a_file_is_scanned_once(cache, file, scans):
    first, second = table_of(file), table_of(file)
    assert len(scans) == 1
    assert equal_tables(first, second)
    assert equal_tables(first, Table.of(file))


def test_no_file_is_written_beside_the_data(cache, file):
    table_of(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    (stored,) = (path for path in cache.rglob("*") if path.is_file())
    assert stored.suffix == ".index"


def test_the_cache_holds_numbers_and_json(cache, file):
    table = table_of(file)
    (stored,) = cache.rglob("*.index")
    content = stored.read_bytes()
    length = int.from_bytes(content[4:12], "little")
    header = json.loads(content[12 : 12 + length])
    assert [kind["short_name"] for kind in header["kinds"]] == ["2t", "z"]
    assert (np.frombuffer(content[12 + length :], RECORD) == table.records).all()


@pytest.mark.parametrize("place", [30, -30])
def test_changed_bytes_with_the_same_size_and_date_are_noticed(cache, file, scans, place):
    before, status = table_of(file), file.stat()
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = table_of(file)
    assert len(scans) == 2
    assert after.kinds == before.kinds
    assert (after.records["sample"] != before.records["sample"]).sum() == 1


def test_a_rewritten_file_is_scanned_again(cache, file, writer, scans):
    assert len(table_of(file).records) == 36
    writer.forecast(file, ["2t"])
    assert len(table_of(file).records) == 18
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    table_of(file)
    assert len(scans) == 3


def test_a_copy_has_its_own_table(cache, file, scans):
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


def with_checksum(content):
    """A cache file with a correct checksum and any content."""
    return zlib.crc32(content).to_bytes(4, "little") + content


def line(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


DAMAGE = {
    "empty": lambda content: b"",
    "short": lambda content: content[: len(content) // 2],
    "rubbish": lambda content: b"rubbish" * 50,
    "flipped": lambda content: content[:-99] + bytes([content[-99] ^ 255]) + content[-98:],
    "half a record": lambda content: with_checksum(content[4:-3]),
    "no line": lambda content: with_checksum((10**6).to_bytes(8, "little")),
    "no json": lambda content: with_checksum((5).to_bytes(8, "little") + b"hello"),
    "no dictionary": lambda content: with_checksum(line([1, 2])),
    "no kinds": lambda content: with_checksum(line({"identity": "1"})),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "folder"])
def test_a_damaged_cache_is_replaced(cache, file, scans, damage):
    good = table_of(file)
    (stored,) = cache.rglob("*.index")
    content = stored.read_bytes()
    stored.unlink()
    if damage == "folder":
        stored.mkdir()
    else:
        stored.write_bytes(DAMAGE[damage](content))
    assert equal_tables(table_of(file), good)
    assert len(scans) == 2
    assert equal_tables(table_of(file), good)
    assert len(scans) == (3 if damage == "folder" else 2)


@pytest.mark.parametrize(
    "change", [{"kinds": [{"short_name": "2t"}]}, {"kinds": [{"unknown": 1}]}, {"kinds": 5}, {"kinds": None}]
)
def test_kinds_with_other_keys_are_not_read(cache, file, scans, change):
    good = table_of(file)
    (stored,) = cache.rglob("*.index")
    content = stored.read_bytes()
    length = int.from_bytes(content[4:12], "little")
    header = json.loads(content[12 : 12 + length])
    stored.write_bytes(with_checksum(line({**header, **change}) + content[12 + length :]))
    assert equal_tables(table_of(file), good)
    assert len(scans) == 2


def test_a_cache_that_cannot_be_written_is_ignored(file, scans, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("not a folder")
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "taken"))
    assert len(table_of(file).records) == len(table_of(file).records) == 36
    assert len(scans) == 2


def test_the_folder_of_the_cache(file, tmp_path, monkeypatch):
    monkeypatch.delenv("DEEPWEATHER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    table_of(file)
    assert len(list((tmp_path / "home" / ".cache" / "deepweather").rglob("*.index"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    table_of(file)
    assert len(list((tmp_path / "xdg" / "deepweather").rglob("*.index"))) == 1


def test_a_file_that_cannot_be_read_is_refused_by_name(cache, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nothing \(No such file"):
        table_of(tmp_path / "nothing")


def test_a_damaged_file_leaves_nothing_in_the_cache(cache, file):
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match="cut off"):
        table_of(file)
    assert not list(cache.rglob("*.index"))


# Many files


@pytest.fixture
def files(writer, tmp_path):
    (tmp_path / "many").mkdir()
    return [writer.forecast(tmp_path / "many" / f"output.{k}", ["2t"], (1998 + k,)) for k in range(6)]


def in_processes(function, paths):
    """`map` in processes that share the cache folder."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, paths))


@pytest.mark.parametrize("each", [None, map, in_processes])
def test_many_files_are_scanned_once_in_threads_or_processes(cache, files, scans, each):
    progress = []
    assert index_files([str(path) for path in files], each, lambda *done: progress.append(done)) == {}
    assert progress == [(k, 6) for k in range(1, 7)]
    assert len(list(cache.rglob("*.index"))) == 6
    before = len(scans)
    tables = list(tables_of(files))
    assert len(scans) == before
    assert [table.path for table in tables] == files
    assert [len(table.records) for table in tables] == [9] * 6


def test_damaged_files_are_named_and_the_others_are_scanned(cache, files):
    files[1].write_bytes(b"rubbish")
    files[4].write_bytes(files[4].read_bytes()[:-1])
    wrong = index_files(files)
    assert list(wrong) == [files[1], files[4]]
    assert "output.1 is text, not GRIB" in wrong[files[1]]
    assert "output.4 is cut off" in wrong[files[4]]
    assert len(list(cache.rglob("*.index"))) == 4


READER = """
import sys
from pathlib import Path
from data_pipeline.formats.grib.cache import index_files, table_of, tables_of
from data_pipeline.formats.grib.table import Table
path = Path(sys.argv[1])
expected = Table.of(path)
for _ in range(30):
    table = table_of(path)
    assert table.kinds == expected.kinds and (table.records == expected.records).all()
    stored = next(Path(sys.argv[2]).rglob("*.index"), None)
    if stored:
        stored.unlink(missing_ok=True)
"""


def test_processes_that_write_and_remove_one_cache_never_read_part_of_it(cache, file):
    command = [sys.executable, "-c", READER, str(file), str(cache)]
    readers = [subprocess.Popen(command, cwd=Path(__file__).parents[3]) for _ in range(3)]
    assert [reader.wait(60) for reader in readers] == [0, 0, 0]
    assert not [path for path in cache.rglob("*") if "partial" in path.name]
