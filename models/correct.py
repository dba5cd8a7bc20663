"""The verb `correct`: copies forecasts in GRIB or NetCDF with corrected members in place of the raw ones.

On a mesh, the first rank writes the files. All ranks correct their tile of each forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf import light_verb
from data_pipeline.common.checks import check_boolean, check_choice
from data_pipeline.common.cost_meter import CostMeter, print_usage
from data_pipeline.common.errors import DiskFullError, InputError
from data_pipeline.common.extras import package
from data_pipeline.common.fetching import local_file
from data_pipeline.common.file_format import ONNX_FORMAT, file_format
from data_pipeline.common.files import expand_paths
from data_pipeline.common.machine_memory import MEDIUM_ARRAYS, keep_freed_memory
from data_pipeline.common.messages import say
from data_pipeline.formats.variables import checked_names
from models.corrected_files.conformal_option import conformal_layers
from models.corrected_files.correct_files import correct_files
from models.corrected_files.input_files import Cycle, InputFiles, find_cycles, is_folder, name_files
from models.corrected_files.opening import WantedStations
from models.corrected_files.sidecar import refuse_corrected
from models.correction.guards import Guard, check_guard
from models.correction.pipeline import CorrectionPipelines
from models.engines.engine import Engine
from models.engines.onnx_engine import OnnxEngine
from models.members.options import CorrectionOptions
from models.members.products import EXAMPLES
from models.parallel.mesh_shape import mesh_shape
from models.parallel.single_process import DEVICES, Processes, SingleProcess


def correction_options(options: Mapping[str, Any]) -> CorrectionOptions:
    """Check the options that need no file; return the options that say how members are made."""
    engine_paths(options["corrector"])
    check_choice("device", options["device"], DEVICES)
    check_boolean("explain", options["explain"])
    mesh_shape(options["mesh"], "mesh")
    checked_names("variable_names", options["variable_names"])
    check_guard(options["on_problem"], options["fallback"] is not None, options["untrained_times"])
    wanted_stations(options["stations"], options["static_fields"])
    path_texts("earlier", options["earlier"])
    if options["analysis"] is not None:
        file_path("analysis", options["analysis"])
    return CorrectionOptions(
        quantile_levels=options["quantile_levels"],
        seed=options["seed"],
        members=options["members"],
        member_count=options["member_count"],
        history=path_texts("history", options["history"]),
        reforecasts=path_texts("reforecasts", options["reforecasts"]),
        template=options["template"],
        mark=options["mark"],
        keys=options["keys"] or {},
        products=product_texts(options["products"]),
    )


@light_verb("correct", correction_options)
def main(options: dict[str, Any]) -> list[str]:
    """Check the options, correct the files, print a summary; return why the outputs need attention."""
    keep_freed_memory(MEDIUM_ARRAYS)
    made, paths = correction_options(options), engine_paths(options["corrector"])
    with CostMeter() as meter, join_processes(options["mesh"], paths) as mesh:
        engines = load_engines(paths, options["device"], mesh, meter)
        names = checked_names("variable_names", options["variable_names"])
        files = mesh.run_on_first(lambda: InputFiles.find(options["input"]))
        cycles = mesh.run_on_first(lambda: find_cycles(files, options["output"], options["format"], names))
        if files.note:
            say(files.note)
        guards = make_guards(options, engines, mesh)
        problems, attention = [], []
        for cycle in cycles:
            try:
                systems = [name for engine in engines for name, _ in engine.description.task.systems]
                forecasts = files.numbered(cycle.inputs, list(dict.fromkeys(systems)))
                attention += correct_cycle(cycle, forecasts, engines, mesh, options, made, guards)
            except InputError as error:
                if not is_folder(options["output"]) or isinstance(error, DiskFullError):
                    raise
                problems.append(cycle)
                say(f"not corrected: {cycle}: {error}")
        print_usage(meter, mesh)
        if problems:
            raise InputError(
                f"{len(problems)} of {len(cycles)} cycles were not corrected, for the reasons above; the first has the "
                f"files {problems[0]}; correct these files again when they are complete"
            )
    return attention


def correct_cycle(
    cycle: Cycle, forecasts: Sequence[Path], engines: list[Engine], mesh: Processes, options: Mapping[str, Any],
    made: CorrectionOptions, guards: list[Guard],
) -> list[str]:  # fmt: skip
    """Correct the files of one cycle, and print a summary; return why it needs attention."""
    if cycle.problem:
        raise InputError(cycle.problem)
    mesh.run_on_first(lambda: refuse_corrected(cycle.inputs, [engine.description for engine in engines]))
    outputs = cycle.outputs
    analysis = None if options["analysis"] is None else file_path("analysis", options["analysis"])
    finish = explanation(options["explain"], outputs[0], list(cycle.inputs), mesh)
    layers, notes = conformal_layers(options["conformal"], [engine.description for engine in engines])
    summary = correct_files(
        engines, forecasts, outputs, mesh, replace(made, conformal=layers), analysis,
        checked_names("variable_names", options["variable_names"]), finish, cycle.output_type, guards,
        wanted_stations(options["stations"], options["static_fields"]),
        expand_paths(path_texts("earlier", options["earlier"])) if options["earlier"] else (),
    )  # fmt: skip
    parts = "; ".join(
        f"{', '.join(map(str, task.targets))} at {', '.join(f'+{lead}' for lead in task.lead_times)} h"
        for task in (engine.description.task for engine in engines)
    )
    what = "messages" if cycle.output_type == "grib" else "fields"
    others = ", all others copied unchanged" if summary.copied else ""
    done = "products written" if made.only_products else f"{what} corrected"
    say(f"{name_files(outputs)}: {summary.messages} {done} ({parts}){others}")
    for note in [*summary.notes, *notes]:
        say(note)
    return [f"{name_files(outputs)}: {problem}" for problem in summary.problems]


def explanation(
    explain: object, output: Path, forecasts: list[Path], mesh: Processes
) -> Callable[[CorrectionPipelines], None] | None:
    """Return a function that writes the page of `explain=true` beside the output; None without this option."""
    if not explain:
        return None
    if mesh.ranks > 1:
        raise InputError("explain=true needs a single process; set mesh=[1,1], or explain=false")
    with package("explain=true", "train"):
        from evaluation.explanation.explanation_run import write_explanation

    about = {"Input": ", ".join(map(str, forecasts)), "Output": str(output)}
    return lambda pipelines: say(f"{write_explanation(pipelines, output, about)}: what was changed, and why")


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


def make_guards(options: Mapping[str, Any], engines: list[Engine], mesh: Processes) -> list[Guard]:
    """Return the guard of each corrector; `fallback` is one file, or {NAME: FILE} with the names of the correctors."""
    option, on_problem, untrained = options["fallback"], options["on_problem"], options["untrained_times"]
    if option is None:
        return [Guard(on_problem, None, untrained) for _ in engines]
    paths = option if isinstance(option, Mapping) else {engine.description.name: option for engine in engines}
    known = [engine.description.name for engine in engines]
    if unknown := [name for name in paths if name not in known]:
        raise InputError(f"fallback names {unknown[0]}, which is no corrector of this run ({', '.join(known)})")
    guards = []
    for name in known:
        if name not in paths:
            raise InputError(f"fallback has no file for the corrector {name}; name one for each corrector")
        (fallback,) = load_engines({name: corrector_file("fallback", paths[name])}, options["device"], mesh)
        guards.append(Guard(on_problem, fallback, untrained))
    return guards


def is_exported(path: Path) -> bool:
    """Whether a file is an exported corrector."""
    return path.is_file() and file_format(path) is ONNX_FORMAT


def load_engines(
    paths: Mapping[str, Path], device: object, processes: Processes, meter: CostMeter | None = None
) -> list[Engine]:
    """Return the engine of each corrector file by name, on this rank's tile; `meter` measures their GPU."""
    return [
        onnx_engine(path, name, device, processes)
        if is_exported(path)
        else torch_engine(path, name, device, processes, meter)
        for name, path in paths.items()
    ]


def torch_engine(path: Path, name: str, device: object, processes: Processes, meter: CostMeter | None = None) -> Engine:
    """Return the engine of a corrector file, which computes in PyTorch on this rank's tile."""
    from models.corrector import Corrector
    from models.device import choose_device, watch_gpu
    from models.engines.torch_engine import TorchEngine

    corrector, chosen = Corrector.load(path), choose_device(device, processes)
    if meter is not None:
        watch_gpu(meter, chosen)
    return TorchEngine(corrector, processes.domain(corrector.grid), chosen, name, path)


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
    return {str(name): corrector_file("corrector", value) for name, value in named.items()}


def corrector_file(option: str, value: object) -> Path:
    """Return the file of a corrector, which is fetched if the option is a URL."""
    file_path(option, value)
    return local_file(str(value))


def file_path(option: str, value: object) -> Path:
    """Return the path in the value of an option. Raises `InputError` unless the value is one path."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{option} must be the path of one file, got {value!r}; write a number as ./{value}")
    return Path(value).expanduser()


def wanted_stations(path: object, static: object) -> WantedStations | None:
    """Return the options `stations` and `static_fields`."""
    listed = path_texts("static_fields", static)
    if path is None:
        if listed:
            raise InputError("static_fields is for the stations of stations=FILE; name that file, or leave it out")
        return None
    return WantedStations(str(file_path("stations", path)), listed)


def product_texts(value: object) -> tuple[str, ...]:
    """Return the texts of the option `products`: null, one text, or a list of them."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if wrong := [one for one in listed if not isinstance(one, str)]:
        raise InputError(f"products must be a list of texts, got {wrong[0]!r}; {EXAMPLES}")
    return tuple(listed)


def path_texts(option: str, value: object) -> tuple[str, ...]:
    """Return the paths of an option that is null, one path, folder or pattern, or a list of them."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if wrong := [one for one in listed if not isinstance(one, str) or not one]:
        raise InputError(
            f"{option} must be a path or a list of paths, got {wrong[0]!r}; write a number as ./{wrong[0]}"
        )
    return tuple(listed)


if __name__ == "__main__":
    main()
