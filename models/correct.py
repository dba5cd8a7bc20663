"""The verb `correct`: copies GRIB forecasts with corrected members in place of the raw ones.

On a mesh, the first rank reads and writes the files, message by message. All ranks correct their tile of each forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conf import light_verb
from data_pipeline.common.checks import check_boolean, check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.file_format import (
    GRIB_FORMAT,
    HDF5_FORMAT,
    NETCDF_FORMAT,
    ONNX_FORMAT,
    UNKNOWN_FORMAT,
    ZARR_FORMAT,
    file_format,
    wrong_format,
)
from data_pipeline.common.memory import keep_freed_memory
from data_pipeline.formats.variables import checked_names
from models.correction.conformal_option import conformal_layers, record_layers
from models.correction.correct_files import correct_files
from models.correction.engine import Engine
from models.correction.onnx_engine import OnnxEngine
from models.correction.options import CorrectionOptions
from models.correction.pipeline import CorrectionPipelines
from models.correction.single_process import Processes, SingleProcess

OTHER_FORMATS = (
    ".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf", ".hdf5", ".zarr", ".npy", ".npz", ".csv", ".safetensors",
    ".zip", ".gz", ".bz2", ".xz", ".zst", ".tar",
)  # fmt: skip
"""File name endings of other formats. Any other ending, such as a date, may be a GRIB file."""


@light_verb("correct")
def main(options: dict[str, Any]) -> None:
    """Check the options, correct the files, print a summary."""
    keep_freed_memory()
    output = output_path(options["output"])
    paths = engine_paths(options["corrector"])
    with join_processes(options["mesh"], paths) as mesh:
        engines = load_engines(paths, options["device"], mesh)
        forecasts = forecast_paths(options["input"])
        analysis = None if options["analysis"] is None else file_path("analysis", options["analysis"])
        names = checked_names("variable_names", options["variable_names"])
        finish = explanation(options["explain"], output, forecasts, mesh)
        layers, notes = conformal_layers(options["conformal"], [engine.description for engine in engines])
        made = CorrectionOptions(
            quantile_levels=options["quantile_levels"],
            seed=options["seed"],
            members=options["members"],
            history=history_paths(options["history"]),
            conformal=layers,
            template=options["template"],
            mark=options["mark"],
        )
        summary = correct_files(engines, forecasts, output, mesh, made, analysis, names, finish)
        mesh.run_on_first(lambda: record_layers(output, layers))
        parts = "; ".join(
            f"{', '.join(map(str, task.targets))} at {', '.join(f'+{lead}' for lead in task.lead_times)} h"
            for task in (engine.description.task for engine in engines)
        )
        mesh.print(f"{output}: {summary.messages} messages corrected ({parts}), all others copied unchanged")
        for note in [*summary.notes, *notes]:
            mesh.print(note)


def explanation(
    explain: object, output: Path, forecasts: list[Path], mesh: Processes
) -> Callable[[CorrectionPipelines], None] | None:
    """Return a function that writes the page of `explain=true` beside the output; None without this option."""
    check_boolean("explain", explain)
    if not explain:
        return None
    if mesh.ranks > 1:
        raise InputError("explain=true needs a single process; set mesh=[1,1], or explain=false")
    with package("explain=true", "train"):
        from evaluation.explanation.explanation_run import write_explanation

    about = {"Input": ", ".join(map(str, forecasts)), "Output": str(output)}
    return lambda pipelines: mesh.print(f"{write_explanation(pipelines, output, about)}: what was changed, and why")


@contextmanager
def join_processes(mesh: Any, paths: Mapping[str, Path]) -> Iterator[Processes]:
    """Join the mesh of the option `mesh`; exported correctors alone need no mesh, and so no PyTorch."""
    if not all(is_exported(path) for path in paths.values()):
        with package("a corrector that is not exported", "train"):
            from models.parallel.mesh import join_mesh
        with join_mesh(mesh) as joined:
            yield joined
        return
    if mesh not in ([1, 1], [1, 1, 1]):
        raise InputError(
            f"mesh={mesh} needs correctors that are not exported: an exported one works on whole fields in one "
            "process; set mesh=[1,1], or name the corrector files that they were exported from"
        )
    yield SingleProcess()


def is_exported(path: Path) -> bool:
    """Whether a file is an exported corrector."""
    return path.is_file() and file_format(path) is ONNX_FORMAT


def load_engines(paths: Mapping[str, Path], device: object, processes: Processes) -> list[Engine]:
    """Return the engines of the corrector files by their names, each on the own tile."""
    check_choice("device", device, ("auto", "cpu", "gpu"))
    return [
        onnx_engine(path, name, device, processes) if is_exported(path) else torch_engine(path, name, device, processes)
        for name, path in paths.items()
    ]


def torch_engine(path: Path, name: str, device: object, processes: Processes) -> Engine:
    """Return the engine of a corrector file, which computes in PyTorch on the own tile."""
    from models.correction.torch_engine import TorchEngine
    from models.corrector import Corrector
    from models.device import choose_device

    corrector, domain = Corrector.load(path), processes.domain
    return TorchEngine(corrector, domain(corrector.grid), choose_device(device, processes.ranks), name, path)


def onnx_engine(path: Path, name: str, device: object, processes: Processes) -> OnnxEngine:
    """Return the engine of an exported corrector, which computes on the processor in one process."""
    if processes.ranks > 1:
        raise InputError(
            f"{path} is an exported corrector, which works on whole fields in one process; set mesh=[1,1], or name the "
            "corrector file that it was exported from"
        )
    if device == "gpu":
        raise InputError(f"{path} is an exported corrector, which computes on the processor; leave out device=gpu")
    return OnnxEngine(path, name)


def engine_paths(option: object) -> dict[str, Path]:
    """Return the file of each corrector by its name: the option is one path, a list of paths, or {NAME: PATH}."""
    named: Mapping[Any, object]
    if isinstance(option, Mapping):
        named = option
    else:
        listed = option if isinstance(option, list) else [option]
        named = {str(value): value for value in listed}
        if len(named) < len(listed):
            raise InputError("corrector names a file twice; name each corrector once")
    if not named:
        raise InputError("corrector is empty; name the file of a corrector")
    return {str(name): file_path("corrector", value) for name, value in named.items()}


def file_path(option: str, value: object) -> Path:
    """Return the path in the value of an option. Raises `InputError` unless the value is one path."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{option} must be the path of one file, got {value!r}; write a number as ./{value}")
    return Path(value).expanduser()


def history_paths(value: object) -> tuple[str, ...]:
    """Return the files of past analyses: the option is null, one path, folder or pattern, or a list of them."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if wrong := [one for one in listed if not isinstance(one, str) or not one]:
        raise InputError(f"history must be a path or a list of paths, got {wrong[0]!r}; write a number as ./{wrong[0]}")
    return tuple(listed)


def forecast_paths(value: object) -> list[Path]:
    """Return the paths of the input files: the option is one path or a list of paths."""
    paths = [forecast_path(one) for one in value] if isinstance(value, list) else [forecast_path(value)]
    if not paths:
        raise InputError("input is an empty list; name the files of a forecast")
    if twice := next((path for number, path in enumerate(paths) if path in paths[:number]), None):
        raise InputError(f"input names {twice} twice; name each file once")
    return paths


def forecast_path(value: object) -> Path:
    """Return the path of the input file. Raises `InputError` for a folder, a missing file, and a NetCDF file."""
    path = file_path("input", value)
    if path.is_dir():
        raise InputError(f"input={path} is a folder; name one GRIB file")
    if not path.exists():
        raise InputError(f"there is no file {path}; check input, which is one GRIB file (patterns are not expanded)")
    found = file_format(path)
    if found in (NETCDF_FORMAT, HDF5_FORMAT, ZARR_FORMAT):
        raise InputError(f"{path} is {found}; correct reads and writes GRIB only, so convert the forecast to GRIB")
    if found not in (GRIB_FORMAT, UNKNOWN_FORMAT):
        raise wrong_format(path, "GRIB")
    return path


def output_path(value: object) -> Path:
    """Return the path of the output file. Raises `InputError` for a file name ending of another format."""
    path = file_path("output", value)
    if path.suffix.lower() in OTHER_FORMATS:
        raise InputError(
            f"output={path} ends in {path.suffix}, but correct writes GRIB; choose another name, such as "
            f"{path.with_suffix('.grib')}"
        )
    return path


if __name__ == "__main__":
    main()
