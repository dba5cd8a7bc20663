"""`prepare` on files like those of ENS-10: plan, index, statistics, store, kill -9, and wrong input."""

import multiprocessing
import os
import re
import shutil
import signal
import sys
from itertools import count, product

import deepweather
import netCDF4
import numpy as np
import pytest
from weather_files import weather, write_grib

from data_pipeline.common.files import lock_folder
from data_pipeline.grid import Grid
from data_pipeline.store import Store

GRID = Grid.regular(9, 12)
DATES = ("20180104", "20180108", "20180111")
FILES = {"pl": ("t", "u"), "sfc": ("2t", "msl")}
TASK = ["task.inputs=[2t,msl]"]
ALL = ["statistics=[efi]", "store=store"]


@pytest.fixture(scope="module")
def ens10(tmp_path_factory):
    """A folder of hindcasts without extension, each file one date of all years, and analyses beside them."""
    folder = tmp_path_factory.mktemp("ens10")
    starts = np.array([f"{year}-{date[4:6]}-{date[6:]}" for date in DATES for year in range(2011, 2018)], "M8[ns]")
    parts = weather((0, 24, 48), (1, 2), (850,), np.sort(starts), ("2t", "msl"), GRID)
    forecasts = parts["ensemble"].assign(u=parts["ensemble"].t - 280)
    for date, (kind, names) in product(DATES, FILES.items()):
        of_date = forecasts[[*names]].isel(init_time=forecasts.init_time.dt.day == int(date[6:]))
        keys = {"stream": "enfh", "referenceDate": int(date), "dataTime": 0}
        write_grib(folder / f"output.{kind}.{date}", "ensemble", of_date, **keys)
    verified = parts["analysis"].time.dt.day.isin([6, 10, 13])
    write_grib(folder / "analysis", "analysis", parts["analysis"][["2t"]].isel(time=verified), dataTime=0)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def prepare(command, tmp_path, cache):
    """Run `deepweather prepare data=ens10 ...` in an empty folder."""
    return lambda *options: command(tmp_path, "prepare", "data=ens10", *options)


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_index_statistics_and_store(ens10, prepare, tmp_path, cache):
    ended = prepare(f"path={ens10}", *TASK, *ALL)
    assert ended.code == 0, ended.stderr
    plan, _, rest = ended.stdout.partition("\n\nensemble\n")
    assert "ensemble: 6 files" in plan
    assert "about 504 messages" in plan
    assert "output.pl.20180104 to output.sfc.20180111" in plan
    assert f"index: 0 of 7 GRIB files are known, in {cache}/grib" in plan
    assert "for 6 files, " in plan
    probe = re.search(r"because (\S+) \(", plan)[1]
    sizes = sorted(path.stat().st_size for path in ens10.iterdir())
    assert (ens10 / probe).stat().st_size == sizes[3], "the check before the run reads a file of median size"
    assert "statistics: will be in prepared/ens10-t2m/efi.nc" in plan
    assert "store: will be in store" in plan
    assert len(list((cache / "grib").iterdir())) == 7
    assert "messages     504" in rest
    assert "statistics, 1998-2013: 9 of 9 forecasts are used" in rest
    with netCDF4.Dataset(tmp_path / "prepared/ens10-t2m/efi.nc") as file:
        assert file["climate"].shape == (1, 1, 3, 33, *GRID.shape)
    # Finished parts are not repeated.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    ended = prepare(f"path={ens10}", *TASK, *ALL)
    assert "index: 7 of 7 GRIB files are known" in ended.stdout
    assert "efi: in prepared/ens10-t2m/efi.nc" in ended.stdout
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    # With other options of a statistic, only its file is computed again.
    assert prepare(f"path={ens10}", *TASK, *ALL, "efi.window_starts=3").code == 0
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert [path.name for path in before if before[path] != after[path]] == ["efi.nc"]


def prepare_until(folder, ens10, change):
    """Run `prepare` with a store of several files; SIGKILL ends the process before it changes a file for this time."""
    changes = count()

    def hook(event, arguments):
        written = event == "open" and (arguments[2] or 0) & os.O_ACCMODE != os.O_RDONLY
        if (written or event in ("os.rename", "os.remove")) and next(changes) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    for method in (Store.plan, Store.write):
        method.__kwdefaults__["shard_bytes"] = 10_000
    os.environ["DEEPWEATHER_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    sys.addaudithook(hook)
    sys.argv = ["deepweather", "prepare", "data=ens10", f"path={ens10}", *TASK, *ALL]
    deepweather.main()


def test_a_run_killed_at_any_change_of_its_files_is_completed_by_the_next(ens10, tmp_path):
    """Statistics, index and store are identical to those of an uninterrupted run."""

    def run(folder, change=-1):
        folder.mkdir(exist_ok=True)
        process = multiprocessing.get_context("fork").Process(target=prepare_until, args=(folder, ens10, change))
        process.start()
        process.join(600)
        return process.exitcode

    assert run(tmp_path / "unbroken") == 0
    unbroken = content(tmp_path / "unbroken")
    assert len(unbroken) == 1 + 7 + 5 + 2  # statistics, index, store, locks
    killed = []
    for change in count(2, 17):
        folder = tmp_path / str(change)
        if (code := run(folder, change)) == 0:
            break
        assert code == -signal.SIGKILL
        assert run(folder) == 0
        assert content(folder) == unbroken, change
        killed.append(change)
    assert len(killed) >= 3


def assert_refused(ended, *words):
    assert ended.code == 2, ended.stdout + ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    return line


def test_damaged_files_are_reported_after_the_summary(ens10, prepare, tmp_path):
    damaged = shutil.copytree(ens10, tmp_path / "damaged")
    cut = damaged / "output.sfc.20180108"
    cut.write_bytes(cut.read_bytes()[:-100])
    ended = prepare(f"path={damaged}")
    assert_refused(ended, "output.sfc.20180108", "fetch it again, or leave it out of data.archive")
    assert "messages     420" in ended.stdout  # the other five files
    assert "analysis\n" in ended.stdout
    (damaged / "output.pl.20180104").write_bytes(b"")
    assert_refused(prepare(f"path={damaged}"), "output.pl.20180104", "(and 1 more files cannot be read)")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["statistics=[eif]"], ["statistics must be one of normalization, efi, got 'eif'"]),
        (["moments=true"], ["moments=true applies to a store; set its folder with store=FOLDER"]),
        (["statistics=[efi]", "efi.widnow_starts=9"], ["no option efi.widnow_starts; did you mean efi.window_starts?"]),
        (["run_dir=/dev/null/x", "statistics=[efi]"], ["cannot create the folder /dev/null/x", "another run_dir"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_options_are_refused(ens10, prepare, options, words):
    assert_refused(prepare(f"path={ens10}", *TASK, *options), *words)


def test_a_cache_that_cannot_be_written_is_reported(ens10, prepare, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "file"))
    assert_refused(prepare(f"path={ens10}"), "the index cannot be written to", "file/grib", "set DEEPWEATHER_CACHE")


def test_two_runs_do_not_write_into_one_folder(ens10, prepare, tmp_path):
    (tmp_path / "out").mkdir()
    with lock_folder(tmp_path / "out"):
        assert_refused(prepare(f"path={ens10}", *TASK, ALL[0], "run_dir=out"), "another run is writing to out")
