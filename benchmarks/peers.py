"""One table of this project beside others: reading GRIB, reading samples, scoring, fitting EMOS.

    python3 -m venv .venv-peers && .venv-peers/bin/pip install -r benchmarks/requirements-peers.txt
    python -m benchmarks.peers [--json] [--peers .venv-peers/bin/python] [--rounds 3]

Readers of other projects run in the environment of `--peers`, each in a process of its own (`benchmarks.peer_readers`);
a reader that is not installed there gets a row with the reason. All other peers are packages of the tests. The files
are in the page cache, the shortest of `--rounds` timings counts, and all programs compute the same numbers, which this
program checks: mean of the values read, CRPS of all members, CRPS of the fitted EMOS on its training cases.

- `grib`: 80 GRIB2 messages of 361 x 720 points, 16 bits. This project fills an existing array from two threads, or
  from one; peers allocate their arrays.
- `samples`: starts of 10 members x 8 variables on 361 x 720, in order. This project reads its store, with mask, truth
  and static fields; peers read an uncompressed Zarr store with one chunk per start.
- `scoring`: CRPS of 10 members on 361 x 720, one thread; this project computes plain and fair form in one call.
- `emos`: EMOS of one target at each cell, by its CRPS, with the fit of the normaliser. The peer is `scipy.optimize`
  with BFGS at each cell, the method of R's ensembleMOS; R's own packages are not in Debian.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.stats
import scores.probability
import torch
import xarray as xr
import zarr

from benchmarks.common import HALF_DEGREE, MEMBER_COUNT, PRESSURE_LEVELS, best_times, command_line, machine, report
from benchmarks.samples import FORECAST_YEAR, SAMPLE_TASK, write_derived_store, write_samples
from benchmarks.score import example, ways
from data_pipeline.common.threads import BUDGET
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formats.open import ensemble_fields
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task, Variable
from data_pipeline.writing import Encoder
from evaluation.kernels.ensemble_scores import ensemble_crps
from models.corrector import Corrector

PEERS = Path(".venv-peers/bin/python")
FIELDS = [Variable(name, level) for name in ("z", "t") for level in PRESSURE_LEVELS[:4]]
EMOS_GRID, EMOS_CASES, SCIPY_CELLS = Grid.regular(19, 36), 400, 10
FAIR = ("scoringrules fair", "scoringrules pwm")
"""Programs that compute the fair CRPS (Ferro 2014, doi:10.1002/qj.2270); all others compute the plain one."""


class Row(NamedTuple):
    """Seconds of a program in one comparison; None with the reason if it could not run."""

    subject: str
    program: str
    version: str
    seconds: float | None
    note: str = ""


def version_of(package: str) -> str:
    """Return the version of an installed package."""
    return importlib.metadata.version(package)


def run_reader(python: Path, name: str, path: Path, rounds: int) -> tuple[float | None, str, float, str]:
    """Return the seconds, the version and the mean of a reader of `benchmarks.peer_readers`, or why it did not run."""
    if not python.exists():
        return None, "", 0.0, f"there is no {python}"
    program = Path(__file__).with_name("peer_readers.py")
    ended = subprocess.run(
        [python, program, name, path, "--rounds", str(rounds)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        return None, "", 0.0, (ended.stderr.strip().splitlines() or ["it ended without a message"])[-1]
    found = json.loads(ended.stdout.splitlines()[-1])
    return found["seconds"], found["version"], found["mean"], ""


def peer_rows(subject: str, names: tuple[str, ...], path: Path, python: Path, rounds: int, mean: float) -> list[Row]:
    """Return the rows of readers; each must have read values with this mean."""
    rows = []
    for name in names:
        seconds, version, found, note = run_reader(python, name, path, rounds)
        if seconds is not None:
            np.testing.assert_allclose(found, mean, rtol=1e-5, err_msg=name)
        rows.append(Row(subject, name, version, seconds, note))
    return rows


def write_grib(path: Path) -> None:
    """Write 10 members of all `FIELDS` as GRIB2, 16 bits per value."""
    random = np.random.default_rng(0)
    keys = {"edition": 2, "centre": "ecmf", "productDefinitionTemplateNumber": 1, "numberOfForecastsInEnsemble": 11}
    encoder = Encoder(HALF_DEGREE, typeOfLevel="isobaricInhPa", **keys)
    field = random.normal(280, 10, HALF_DEGREE.shape)
    with path.open("wb") as file:
        for variable in FIELDS:
            for member in range(1, MEMBER_COUNT + 1):
                field = np.roll(field, random.integers(1, 720), axis=1)
                when = {"dataDate": 20160104, "endStep": 48, "perturbationNumber": member}
                file.write(encoder.encode(field, shortName=variable.name, level=variable.level, **when))


def grib_rows(folder: Path, python: Path, rounds: int) -> list[Row]:
    """Compare readers of GRIB."""
    path = folder / "fields.grib2"
    write_grib(path)
    fields = ensemble_fields(path, FIELDS, [48])
    out = np.zeros((MEMBER_COUNT, len(FIELDS), *HALF_DEGREE.shape), np.float32)

    def read(threads: int) -> None:
        BUDGET.limit(threads)
        fields.read(fields.cells[0, 0], out)

    read(2)
    works = {f"this project, threads: {threads}": partial(read, threads) for threads in (2, 1)}
    rows = [Row("grib", name, "", seconds) for name, seconds in best_times(works, rounds).items()]
    BUDGET.limit(2)
    mean = float(out.mean(dtype=np.float64))
    return rows + peer_rows("grib", ("cfgrib", "earthkit-data", "gribberish"), path, python, rounds, mean)


def sample_rows(folder: Path, python: Path, rounds: int, starts: int = 4) -> list[Row]:
    """Compare readers of samples."""
    archive = write_samples(folder, starts)
    data = ForecastDataset(write_derived_store(archive, f"{folder}/store"), SAMPLE_TASK, [FORECAST_YEAR])
    first = data[0].ensemble
    array = zarr.open_group(folder / "zarr", mode="w").create_array(
        "ensemble", shape=(starts, *first.shape), chunks=(1, *first.shape), dtype="float32", compressors=None,
        dimension_names=("start", "member", "variable", "latitude", "longitude"),
    )  # fmt: skip
    for index in range(starts):
        array[index] = data[index].ensemble.numpy()
    mean = float(np.mean([data[index].ensemble[0, 0].double().mean() for index in range(starts)]))

    def read() -> None:
        for index in range(starts):
            data[index]

    rows = [Row("samples", "this project, store", "", best_times({"ours": read}, rounds + 1)["ours"])]
    return rows + peer_rows("samples", ("zarr", "xbatcher"), folder / "zarr", python, rounds, mean)


def scoring_rows(rounds: int) -> list[Row]:
    """Compare the CRPS of members; of scoringrules the fastest exact estimator counts."""
    members, truth = example(MEMBER_COUNT)
    works: dict[str, Callable[[], Any]] = {**ways(members, truth)}
    labelled = xr.DataArray(members, dims=("member", "cell")), xr.DataArray(truth, dims="cell")
    works["scores"] = partial(
        scores.probability.crps_for_ensemble, *labelled, ensemble_member_dim="member", preserve_dims="cell"
    )
    BUDGET.limit(1)
    plain, fair = (float(form.mean()) for form in ensemble_crps(members, truth))
    for name, work in works.items():  # compiles, too
        expected = fair if name in FAIR else plain
        found = work()[0] if name == "ours" else work()
        np.testing.assert_allclose(np.mean(np.asarray(found), dtype=np.float64), expected, rtol=1e-4, err_msg=name)
    times = best_times(works, rounds)
    BUDGET.limit(2)
    fastest = min((name for name in times if name.startswith("scoringrules")), key=times.__getitem__)
    return [
        Row("scoring", "this project", "", times["ours"]),
        Row("scoring", "scoringrules", version_of("scoringrules"), times[fastest], f"estimator {fastest.split()[1]}"),
        *(Row("scoring", name, version_of(name), times[name]) for name in ("properscoring", "xskillscore", "scores")),
    ]


class Cases(torch.utils.data.Dataset):
    """Forecasts in memory whose truth has a bias and more spread than the members."""

    task, grid, members = Task("cases", ["2t"], ["2t"], [48]), EMOS_GRID, MEMBER_COUNT

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (EMOS_CASES, 1, *EMOS_GRID.shape)
        signal = 280 + 5 * torch.randn(shape, generator=generator)
        self.ensemble = signal[:, None] + torch.randn(EMOS_CASES, MEMBER_COUNT, *shape[1:], generator=generator)
        self.target = signal - 1 + 1.5 * torch.randn(shape, generator=generator)
        self.static = torch.zeros(len(self.task.static_names), *EMOS_GRID.shape)
        self.fingerprint = "cases of benchmarks.peers"

    def __len__(self) -> int:
        return EMOS_CASES

    def times(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a start every day and the lead time."""
        return 10**9 + 86400 * torch.arange(EMOS_CASES), torch.full((EMOS_CASES,), 48)

    def __getitem__(self, index: int) -> Sample:
        mask, times = torch.ones(1, *EMOS_GRID.shape, dtype=torch.bool), self.times()
        return Sample(self.ensemble[index], mask, self.static, self.target[index], times[0][index], times[1][index])


def normal_crps(mean: np.ndarray, spread: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean CRPS of normal distributions (Gneiting et al. 2005, doi:10.1175/MWR2904.1)."""
    z = (truth - mean) / spread
    normal = scipy.stats.norm
    return float(np.mean(spread * (z * (2 * normal.cdf(z) - 1) + 2 * normal.pdf(z) - 1 / np.sqrt(np.pi))))


def fit_cells(cases: Cases) -> float:
    """Fit EMOS at the first cells with scipy; return their mean CRPS."""
    members = cases.ensemble[:, :, 0].reshape(EMOS_CASES, MEMBER_COUNT, -1).double().numpy()
    truth = cases.target.reshape(EMOS_CASES, -1).double().numpy()
    found = []
    for cell in range(SCIPY_CELLS):
        mean, variance = members[..., cell].mean(1), members[..., cell].var(1, ddof=1)
        centre = mean.mean()

        def crps(p: np.ndarray, mean: np.ndarray = mean - centre, variance: np.ndarray = variance) -> float:
            spread = np.sqrt(p[2] ** 2 + p[3] ** 2 * variance)
            return normal_crps(p[0] + p[1] * mean, spread, truth[:, cell] - centre)  # noqa: B023

        found.append(scipy.optimize.minimize(crps, [0.0, 1.0, 1.0, 1.0], method="BFGS").fun)
    return float(np.mean(found))


def emos_rows(rounds: int) -> list[Row]:
    """Compare fits of EMOS, in seconds for each cell."""
    cases = Cases()
    spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False}
    corrector = Corrector(cases.task, cases.grid, spec, cases.static)
    works: dict[str, Callable[[], object]] = {"ours": partial(corrector.fit, cases), "scipy": partial(fit_cells, cases)}
    times = best_times(works, rounds)
    with torch.no_grad():
        batch = Sample(*(torch.stack(part) for part in zip(*(cases[k] for k in range(EMOS_CASES)), strict=True)))
        forecast = corrector.eval()(batch)
        ours = float(forecast.crps(batch.target).flatten(1)[:, :SCIPY_CELLS].mean())
    theirs = fit_cells(cases)
    assert ours < 1.001 * theirs, f"EMOS of this project has a CRPS of {ours}, that of scipy {theirs}"
    cells = EMOS_GRID.shape[0] * EMOS_GRID.shape[1]
    return [
        Row("emos", "this project", "", times["ours"] / cells, f"CRPS {ours:.4f}"),
        Row("emos", "scipy, BFGS", version_of("scipy"), times["scipy"] / SCIPY_CELLS, f"CRPS {theirs:.4f}"),
    ]


def duration(seconds: float) -> str:
    """Return a time with three digits, in milliseconds below one second."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def table(rows: list[Row]) -> Iterator[str]:
    """Return the lines of a Markdown table; the first row of a subject is the unit of its ratios."""
    yield "| | program | version | time | compared with ours | |\n|---|---|---|---|---|---|"
    for row in rows:
        unit = next(each.seconds for each in rows if each.subject == row.subject)
        assert unit is not None
        figures = " | " if row.seconds is None else f"{duration(row.seconds)} | {row.seconds / unit:.3g}"
        note = f"not measured: {row.note}" if row.seconds is None else row.note
        yield f"| {row.subject} | {row.program} | {row.version} | {figures} | {note} |"


def main() -> None:
    """Run all comparisons, print the table and the ratios."""
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--peers", type=Path, default=PEERS, help="Python with benchmarks/requirements-peers.txt")
    options = parser.parse_args()
    python = options.peers.absolute()
    print(f"peers on {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DEEPWEATHER_CACHE"] = f"{folder}/cache"
        (Path(folder) / "grib").mkdir()
        (Path(folder) / "samples").mkdir()
        rows = grib_rows(Path(folder) / "grib", python, options.rounds)
        rows += sample_rows(Path(folder) / "samples", python, options.rounds)
    rows += scoring_rows(options.rounds) + emos_rows(options.rounds)
    print("\n".join(table(rows)))
    units = {row.subject: row.seconds for row in reversed(rows) if row.program.startswith("this project")}
    ratios = {}
    for row in rows:
        unit = units[row.subject]
        if row.seconds is not None and unit and not row.program.startswith("this project"):
            ratios[f"{row.subject}_{row.program}".replace(", ", "_").replace(" ", "_")] = row.seconds / unit
    report("peers", ratios, options.json)


if __name__ == "__main__":
    main()
