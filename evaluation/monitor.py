"""The verb `monitor`: running scores of corrected forecasts as analyses arrive, alarms, and the conformal layer.

Writes `state.json`, `monitor.html` and `conformal.json` into `run_dir`. The page and the layer are made from the state
alone, so that after an interruption the next run writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from omegaconf import DictConfig

from conf import is_chosen, plain, verb
from data_pipeline.common.checks import check_between, check_boolean, check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.fetching import local_file
from data_pipeline.common.file_format import ONNX_FORMAT, file_format
from data_pipeline.common.files import Url, expand_addresses, lock_folder, write_text
from data_pipeline.formats.variables import checked_names
from data_pipeline.truth_checks import TruthChecks
from evaluation.monitoring.drift import Drift, check_reference, conformal_layer, find_drift
from evaluation.monitoring.monitor_page import chart_title, monitor_page
from evaluation.monitoring.monitor_state import MonitoredForecast, MonitorState, time_text
from evaluation.monitoring.verification import EVERY_CORRECTOR, MonitoredTask, VerificationReport, verify
from evaluation.regions import check_regions, mask_hashes, region_weights
from models.corrector import Corrector
from models.engines.engine import CorrectorDescription
from models.engines.onnx_engine import describe_exported
from models.engines.onnx_file import read_exported
from models.engines.torch_engine import TorchEngine
from models.members.options import QUANTILE_LEVELS

LAYER_OPTIONS = ("conformal_interval", "conformal_step")
"""Options of the conformal layer alone."""
NAMED = 5
"""Most forecasts that a line names."""


def monitor_options(cfg: DictConfig) -> dict[str, Any]:
    """Check the options; return them with the paths of `forecasts` and `analyses` as lists."""
    options = plain(cfg)
    options["reference"] = check_reference(options["reference"])
    check_boolean("retrained", options["retrained"])
    if options["retrained"] and (idle := [name for name in LAYER_OPTIONS if is_chosen(name)]):
        raise InputError(f"{idle[0]} has no effect with retrained=true, which has no conformal layer; remove it")
    check_integer("false_alarm_days", options["false_alarm_days"], 1, 100_000)
    check_choice("quantile_levels", options["quantile_levels"], QUANTILE_LEVELS)
    check_choice("truth_checks", options["truth_checks"], get_args(TruthChecks))
    check_between("conformal_interval", options["conformal_interval"], 0.1, 0.99)
    check_between("conformal_step", options["conformal_step"], 0.001, 1)
    checked_names("variable_names", options["variable_names"])
    check_regions(options["regions"])
    if not isinstance(options["corrector"], str):
        raise InputError(f"corrector must be the path of one file, got {options['corrector']!r}")
    if not isinstance(options["run_dir"], str):
        raise InputError(f"run_dir must be the path of a folder, got {options['run_dir']!r}")
    return options | {name: paths_of(name, options[name]) for name in ("forecasts", "analyses")}


@verb("monitor", monitor_options)
def main(cfg: DictConfig) -> list[str]:
    """Verify, write the state, the conformal layer and the page; return the alarms of the charts."""
    options = monitor_options(cfg)
    reference, forecasts = options["reference"], options["forecasts"]
    monitored, about = monitored_task(local_file(options["corrector"]), options)
    folder = Path(options["run_dir"]).expanduser()
    addresses = expand_addresses(forecasts) if forecasts else []
    files = [address.absolute() for address in addresses if isinstance(address, Path)]
    if url := next((address for address in addresses if isinstance(address, Url)), None):
        raise InputError(f"forecasts names the URL {url}; name files or folders of Zarr that correct has written")
    make_folder(folder)
    with lock_folder(folder):
        state = MonitorState.load(folder / "state.json", about)
        if not files and not state.verified and not state.waiting:
            raise InputError(
                "there is nothing to monitor; name files that correct has written with forecasts=FILE, and "
                "analyses with analyses=FILE"
            )
        report = verify(monitored, state, files, options["analyses"])
        drift = find_drift(state, reference, options["false_alarm_days"])
        retrained = monitored.corrector == EVERY_CORRECTOR
        layer = None if retrained else conformal_layer(state, monitored.corrector, monitored.interval, monitored.step)
        state.save(folder / "state.json")
        if layer:
            write_text(folder / "conformal.json", json.dumps(layer.to_json(), indent=1, allow_nan=False) + "\n")
        write_text(folder / "monitor.html", monitor_page(state, drift, layer, report, options["false_alarm_days"]))
    alarms = alarm_lines(drift, reference)
    print("\n".join([*summary_lines(state, report), *alarms]))
    written = ["state.json", *["conformal.json"] * (layer is not None)]
    print(f"wrote {', '.join(f'{folder}/{name}' for name in written)} and {folder}/monitor.html")
    return alarms if drift.alarms else []


def paths_of(option: str, value: object) -> list[str]:
    """Return the paths and patterns of an option; null gives none."""
    paths = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(path, str) and path for path in paths):
        raise InputError(f"{option} must be a path, a pattern, or a list of them, got {value!r}")
    return [str(path) for path in paths]


def monitored_task(path: Path, options: dict[str, Any]) -> tuple[MonitoredTask, dict[str, Any]]:
    """Return the monitored task, and the facts on which all scores of the state depend."""
    corrector = describe(path)
    regions = check_regions(options["regions"])
    weights = region_weights(corrector.grid, None, regions)
    sha256 = EVERY_CORRECTOR if options["retrained"] else corrector.sha256
    del weights["unweighted"]
    names = checked_names("variable_names", options["variable_names"])
    monitored = MonitoredTask(
        corrector.task, corrector.grid, corrector.target_grid, names, weights,
        float(options["conformal_interval"]), float(options["conformal_step"]), sha256,
        options["quantile_levels"], options["truth_checks"],
    )  # fmt: skip
    targets = zip(corrector.task.targets, corrector.task.target_channels, strict=True)
    about = {
        "corrector": sha256, "targets": list(map(str, corrector.task.targets)),
        "units": [one.units or (corrector.meanings[k].units if corrector.meanings else "") for one, k in targets],
        "lead_times": list(corrector.task.lead_times), "grid": str(corrector.grid), "regions": list(weights),
        "boxes": json.loads(json.dumps(options["regions"])), **mask_hashes(regions),
        "conformal_interval": monitored.interval, "conformal_step": monitored.step,
        "quantile_levels": monitored.quantile_levels, "masked": monitored.truth_checks == "mask",
    }  # fmt: skip
    return monitored, about


def describe(path: Path) -> CorrectorDescription:
    """Return the description of a corrector file, or of an exported one."""
    if path.is_file() and file_format(path) is ONNX_FORMAT:
        return describe_exported(read_exported(path), path.name, path)
    return TorchEngine(Corrector.load(path), path=path).description


def make_folder(folder: Path) -> None:
    """Create the folder; raise `InputError` if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create run_dir={folder} ({error.strerror}); choose another folder") from None


def summary_lines(state: MonitorState, report: VerificationReport) -> list[str]:
    """Return how many forecasts were verified, and name the forecasts that were not."""
    lines = [f"{len(report.new)} forecasts verified now, {len(state.verified)} in all"]
    if report.known:
        lines.append(f"given again and counted once: {named(report.known)}")
    for key, why in list(report.incomplete.items())[:NAMED]:
        lines.append(f"left out: {key}: {why}")
    if len(report.incomplete) > NAMED:
        lines.append(f"left out: {len(report.incomplete) - NAMED} more forecasts")
    if report.far:
        key, far = max(report.far.items(), key=lambda item: item[1])
        lines.append(
            f"note: {len(report.far)} forecasts are far from their analyses, {key} by {far:.0f} times its spread on "
            "average; check units, variable and dates of the files"
        )
    for valid in sorted({key.valid for key in state.waiting})[:NAMED]:
        own = [key for key in state.waiting if key.valid == valid]
        lines.append(f"waiting for the analysis of {time_text(valid)}: {named(own)}")
    later = sorted({key.valid for key in state.waiting})[NAMED:]
    if later:
        count = sum(key.valid in later for key in state.waiting)
        lines.append(f"waiting for {len(later)} later analyses: {count} forecasts")
    return [*lines, *(f"note: {note}" for note in report.notes)]


def named(keys: Sequence[MonitoredForecast]) -> str:
    """Return the first forecasts by name, and the number of the others."""
    rest = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return ", ".join(map(str, sorted(keys)[:NAMED])) + rest


def alarm_lines(drift: Drift, reference: object) -> list[str]:
    """Return the state of the charts, and a line for each alarm."""
    if drift.reference is None:
        wanted = f"{drift.reference_days} of {reference}" if isinstance(reference, int) else f"{drift.reference_days}"
        return [f"the reference period has {wanted} days, and no later day has scores; there is no chart yet"]
    alarms = drift.alarms
    if not alarms:
        return [f"in control: none of {len(drift.charts)} charts is beyond its limit"]
    lines = [f"ALARM: {len(alarms)} of {len(drift.charts)} charts are beyond their limits"]
    for key, chart in list(alarms.items())[:NAMED]:
        lines.append(f"alarm: {chart_title(key)}: {chart.recent:+.2f} times the limit, since {chart.since}")
    return lines


if __name__ == "__main__":
    main()
