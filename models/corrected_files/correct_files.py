"""One run of `correct`: corrects files of forecasts with one or several correctors, and writes the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import total_bytes
from data_pipeline.common.progress import Progress, watched
from data_pipeline.formats.open import grid_of_files
from data_pipeline.formats.system_files import added_number
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from models.corrected_files.input_files import FileType
from models.corrected_files.opening import WantedStations, open_forecasts
from models.corrected_files.outputs import write_outputs
from models.corrected_files.sidecar import (
    WrittenFile,
    describe_correctors,
    describe_options,
    hashed_files,
    write_sidecar,
)
from models.correction.gaps import Gaps
from models.correction.guards import Guard, repeated_messages
from models.correction.pipeline import CorrectionPipeline, CorrectionPipelines
from models.engines.engine import Engine, at_stations
from models.members.options import CorrectionOptions
from models.members.past import Past
from models.members.products import Product, products_of_tasks
from models.parallel.single_process import Processes

SHOWN_PROBLEMS = 5
"""Number of problems that are printed; `CorrectionPipelines.done` has all."""
FALLBACK_NAMES = {"emos": "EMOS", "raw": "the raw ensemble"}


@dataclass(frozen=True)
class CorrectionSummary:
    """Result of `correct_files`."""

    messages: int
    """Number of corrected messages, or of products if only these are made."""
    notes: list[str]
    """Notes for the user about other grids, missing values and fallbacks."""
    problems: list[str] = field(default_factory=list)
    """Why the output needs attention: forecasts that were not corrected as asked, faults that it has from the input."""
    copied: bool = False
    """Whether the outputs are copies of the inputs with other members."""


def correct_files(
    engines: Sequence[Engine],
    forecasts: Sequence[Path],
    output: Path | Sequence[Path],
    processes: Processes,
    options: CorrectionOptions,
    analysis: Path | None = None,
    names: Mapping[str, str] | None = None,
    finish: Callable[[CorrectionPipelines], None] | None = None,
    output_type: FileType | None = None,
    guards: Sequence[Guard] = (),
    stations: WantedStations | None = None,
    earlier: Sequence[Path] = (),
) -> CorrectionSummary:
    """Write `output`: all files `forecasts` with the corrected members in place of the raw ones.

    Several outputs, one for each file, are written by one run: all files are one data set. See `write_outputs`.
    `analysis` is a file of analyses at the starts of the forecasts, and `earlier` are files of forecasts that started
    earlier, for correctors that read them. `names` are other names of variables in these files, as in
    `data_pipeline.archive.Archive`. `finish` is called on the first rank after the output has been written, to explain
    it; the inputs are still open then. `guards` check the forecasts of each engine; by default, a forecast that does
    not resemble the training is an error. `stations` are those at which forecasts on a grid are corrected, by default
    those of the training.

    The output does not depend on the number of processes, with one exception: networks compute in single precision, so
    a value half-way between two steps of the packing may be rounded either way.
    """
    if processes.data > 1:
        raise InputError(
            f"the first number of mesh must be 1, got {processes.data}: forecasts are corrected one after the other; "
            "set the other numbers to the processes that share the globe"
        )
    _refuse_same_targets(engines)
    if analysis is not None and not any(engine.description.task.analysis for engine in engines):
        raise InputError(f"the corrector reads no analysis; remove analysis={analysis}")
    if earlier and not any(formula.lag for engine in engines for formula in engine.description.task.formulas):
        raise InputError("the corrector reads no earlier starts; remove earlier")
    guards = guards or [Guard()] * len(engines)
    cells = ""
    if stations or any(isinstance(engine.description.grid, Points) for engine in engines):
        grid: Grid
        if stations:
            grid, static, cells = processes.run_on_first(lambda: stations.open(engines, forecasts, names))
        else:
            grid, static = processes.run_on_first(lambda: grid_of_files(forecasts, names)), None
        engines = [at_stations(engine, grid, processes, static) for engine in engines]
        guards = [guard.at(grid, processes, static) for guard in guards]
    for engine, guard in zip(engines, guards, strict=True):
        guard.check_fallback(engine.description)

    tasks = [engine.description.task for engine in engines]
    targets = [(target, lead) for task in tasks for target in task.targets for lead in task.lead_times]

    products = products_of_tasks(options.products, tasks)

    def pipeline(engine: Engine, guard: Guard, own: tuple[Product, ...]) -> CorrectionPipeline:
        own_analysis = analysis if engine.description.task.analysis else None
        own_earlier = earlier if any(one.lag for one in engine.description.task.formulas) else ()
        inputs, raw = processes.run_on_first(
            lambda: open_forecasts(engine.description, forecasts, own_analysis, names, own_earlier)
        )
        gaps = Gaps(engine.description.task)
        past = processes.run_on_first(lambda: Past.open(options, engine.description, names))
        return CorrectionPipeline(engine, inputs, raw, processes, options, gaps, frozenset(targets), past, guard, own)

    with Progress("opening the input"):
        pipelines = CorrectionPipelines(
            [pipeline(*each) for each in zip(engines, guards, products, strict=True)], processes
        )
        repeated = processes.run_on_first(lambda: _check_repeated(engines, guards, forecasts, names))
    if not processes.first:
        found: CorrectionSummary = pipelines.serve()
        return found
    try:
        outputs = [output] if isinstance(output, Path) else list(output)
        with pipelines.progress:
            written, notes, copied = write_outputs(pipelines, forecasts, outputs, output_type, names)
        gaps = [sentence for pipeline in pipelines for sentence in pipeline.gaps.sentences()]
        moved = [sentence for engine in engines if (sentence := engine.description.stations)]
        notes = [*([cells] if cells else []), *moved, *notes]
        notes += [*pipelines.product_sentences(), *pipelines.untrained(), *pipelines.without_groups()]
        warnings = [*notes, *gaps, *([repeated] if repeated else []), *_unguarded(engines)]
        for file in watched(written, "sidecars: file"):
            write_sidecar(file.path, _contents(engines, file, pipelines, options, warnings, stations, earlier))
    except InputError as error:
        processes.broadcast(error)
        raise
    problems = [*([repeated] if repeated else []), *fallback_sentences(pipelines)]
    try:
        if finish:
            with Progress("explanation of the correction"):
                finish(pipelines)
    except InputError as error:
        problems.append(f"the output is whole, but its explanation could not be written: {error}")
    count = pipelines.product_counts().total() if options.only_products else sum(file.fields for file in written)
    found = CorrectionSummary(count, [*notes, *gaps, *problems, *_unguarded(engines)], problems, copied)
    summary: CorrectionSummary = processes.broadcast(found)
    return summary


def fallback_sentences(pipelines: CorrectionPipelines) -> list[str]:
    """Return the number of forecasts with each fallback, and the problems of the first forecasts."""
    done = [corrected for number in range(len(pipelines)) for corrected in pipelines.done(number)]
    troubled = [corrected for corrected in done if corrected.method != "corrector"]
    if not troubled:
        return []
    counts = Counter(corrected.method for corrected in troubled)
    listed = " and ".join(f"{count} by {FALLBACK_NAMES[method]}" for method, count in sorted(counts.items()))
    sentences = [sentence for corrected in troubled for sentence in corrected.problems]
    more = [f"and {len(sentences) - SHOWN_PROBLEMS} further problems"] if len(sentences) > SHOWN_PROBLEMS else []
    total = f"{len(done)} forecast{'s' * (len(done) > 1)}"
    return [f"{len(troubled)} of {total} replaced by a fallback: {listed}", *sentences[:SHOWN_PROBLEMS], *more]


def _contents(
    engines: Sequence[Engine],
    file: WrittenFile,
    pipelines: CorrectionPipelines,
    options: CorrectionOptions,
    warnings: Sequence[str],
    stations: WantedStations | None,
    earlier: Sequence[Path],
) -> dict[str, Any]:
    """Return the contents of the sidecar of an output."""
    done = [corrected for number in range(len(pipelines)) for corrected in pipelines.done(number)]
    audit, counts = file.audit, dict[str, Any]()
    if "messages" in audit:
        added = audit["messages"] - audit["messages_of_input"]
        counts = {"messages": audit["messages"], "added": added, "copied": audit["messages"] - file.fields}
    return {
        "correctors": describe_correctors([engine.description for engine in engines]),
        "inputs": hashed_files([*file.inputs, *earlier, *(stations.files if stations else ())]),
        "output": {"path": str(file.path), "bytes": total_bytes([file.path]), "sha256": audit["sha256"]},
        "options": describe_options(options) | {"untrained_times": pipelines[0].guard.untrained_times},
        "counts": {
            **counts,
            "corrected": file.fields,
            **({"products": pipelines.product_counts().total()} if options.products else {}),
            "forecasts": dict(Counter(corrected.method for corrected in done)),
        },
        "warnings": [*warnings, *dict.fromkeys(problem for corrected in done for problem in corrected.problems)],
        "audit": dict(audit),
    }


def _check_repeated(
    engines: Sequence[Engine], guards: Sequence[Guard], forecasts: Sequence[Path], names: Mapping[str, str] | None
) -> str:
    """Return a sentence about messages that the input holds more than once; raise it if problems are errors."""
    variables = {channel.variable.name for engine in engines for channel in engine.description.task.channels}
    found = repeated_messages(forecasts, names, variables, [added_number(forecasts, path) for path in forecasts])
    if found and any(guard.on_problem == "error" for guard in guards):
        raise InputError(f"{found}; remove the copies, or set on_problem=raw to correct all of them alike")
    return found


def _unguarded(engines: Sequence[Engine]) -> list[str]:
    """Return a sentence for each corrector that does not say what it has seen in training."""
    return [
        f"{engine.description.path} does not state the ranges of its training data, so the input was not compared with "
        "them"
        for engine in engines
        if engine.description.envelope is None and engine.description.path is not None
    ]


def _refuse_same_targets(engines: Sequence[Engine]) -> None:
    """Raise `InputError` if two correctors have the same target at the same lead time."""
    owner: dict[tuple[str, int], str] = {}
    for engine in engines:
        task, name = engine.description.task, engine.description.name
        for target in task.targets:
            for lead in task.lead_times:
                other = owner.setdefault((str(target), lead), name)
                if other != name:
                    raise InputError(
                        f"the correctors {other} and {name} both correct {target} at +{lead} h; name one of them"
                    )
