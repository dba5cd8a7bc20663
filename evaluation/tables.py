"""The scores as tables, for the page and for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any

from data_pipeline.task import Variable
from evaluation.pictures import best_model

NAMES = {
    "2t": "2 m temperature", "t": "temperature", "z": "geopotential", "u": "eastward wind",
    "v": "northward wind", "q": "specific humidity", "w": "vertical velocity", "d": "divergence",
    "msl": "mean sea-level pressure", "10u": "10 m eastward wind", "10v": "10 m northward wind",
    "sst": "sea-surface temperature", "skt": "skin temperature", "tp": "total precipitation",
    "cp": "convective precipitation", "tcc": "total cloud cover", "tcw": "total column water",
    "tcwv": "total column water vapour",
}  # fmt: skip
SKILLS = {"vs raw": "skill_vs_raw", "vs EMOS": "skill_vs_emos", "vs climatology": "skill_vs_climatology"}
BESIDE = {"vs raw": "raw", "vs EMOS": "emos", "vs climatology": "climatology"}
CLAIM = {True: "yes", False: "no"}
VERDICT = {True: "yes", False: "no", None: "too few starts to tell"}


def subject(scores: Mapping[str, Any]) -> str:
    """Return what is forecast, for people: `Temperature at 850 hPa, 48 h ahead`."""
    variable = Variable.parse(scores["target"])
    name = NAMES.get(variable.name, variable.name)
    level = f" at {variable.level} hPa" if variable.level else ""
    *leads, last = map(str, scores["lead_times"])
    lead = f"{', '.join(leads)} and {last}" if leads else last
    return f"{name[0].upper()}{name[1:]}{level}, {lead} h ahead"


def years(scores: Mapping[str, Any]) -> str:
    """Return the scored years: `2016–2017`."""
    first, last = scores["years"]
    return f"{first}" if first == last else f"{first}–{last}"


def amount(value: float | None, scores: Mapping[str, Any], sign: bool = False) -> str:
    """Return a value in the target's units, with the decimals that show three digits of the raw CRPS."""
    if value is None:
        return "–"
    scale = scores["models"]["raw"]["crps"] or 1.0
    decimals = max(0, 2 - math.floor(math.log10(scale)))
    plus = "+" if sign else ""
    return _minus(f"{value:{plus}.{decimals}f}" if decimals < 7 else f"{value:{plus}.2e}")


def percent(value: float | None, sign: bool = False, unit: str = " %") -> str:
    """Return a fraction as per cent, with one decimal below a hundred."""
    if value is None:
        return "–"
    number = round(100 * value, 1) + 0.0  # no minus zero
    return _minus(f"{number:{'+' if sign else ''}.{1 if abs(number) < 100 else 0}f}{unit}")


def ratio(value: float | None) -> str:
    """Return a ratio with two decimals."""
    return "–" if value is None else f"{value:.2f}"


def end(value: float) -> str:
    """Return one end of an interval in per cent, without the sign for per cent."""
    return percent(value, unit="")


def html_table(scores: Mapping[str, Any]) -> str:
    """Return the table of all models for the page; columns without any value are left out."""
    columns = ["CRPS", *SKILLS, "captured", "RMSE", "bias", "spread / error"]
    for column in ("vs EMOS", "vs climatology"):
        if scores["models"]["raw"][SKILLS[column]] is None:
            columns.remove(column)
    if scores["oracle"] is None:
        columns.remove("captured")
    rows = {name: _cells(name, model, scores) for name, model in scores["models"].items()}
    if oracle := scores["oracle"]:
        rows["oracle"] = {
            "CRPS": amount(oracle["crps"], scores),
            "captured": "100 %",
            "spread / error": ratio(oracle["spread_skill"]),
        }
    best = best_model(scores)
    head = "".join(f"<th scope='col'>{column}</th>" for column in ["model", *columns])
    body = "".join(
        f"<tr{' class=best' if name == best else ''}><th scope='row'>{escape(name)}</th>"
        + "".join(f"<td>{cells.get(column, '–')}</td>" for column in columns)
        + "</tr>"
        for name, cells in rows.items()
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def plain_table(scores: Mapping[str, Any]) -> str:
    """Return the small table for a terminal."""
    rows = [("model", "CRPS", "vs raw [95 %]", "vs EMOS [95 %]", "captured", "spread/error")]
    for name, model in scores["models"].items():
        skills = _plain(model, "skill_vs_raw"), _plain(model, "skill_vs_emos")
        crps, captured = amount(model["crps"], scores), percent(model["captured"])
        rows.append((name, crps, *skills, captured, ratio(model["spread_skill"])))
    if oracle := scores["oracle"]:
        crps, spread = amount(oracle["crps"], scores), ratio(oracle["spread_skill"])
        rows.append(("oracle", crps, "", "", "100 %", spread))
    where = f"{scores['split']} {years(scores)}, {scores['n_dates']} starts"
    lines = [f"{subject(scores)}: {where}; CRPS in {scores['units']}"]
    for name, crps, raw, emos, captured, spread in rows:
        lines.append(f"{name:<14}{crps:>9}  {raw:<22}{emos:<22}{captured:>9}{spread:>14}")
    return "\n".join([*lines, *_plain_sizes(scores), *(f"warning: {text}" for text in scores["warnings"])])


def size_table(scores: Mapping[str, Any]) -> str:
    """Return the table of all models by number of members for the page."""
    sizes = list(scores["models"]["raw"]["by"]["members"])
    groups = "".join(
        f"<th scope='colgroup' colspan='{len(sizes)}'>{group} with</th>" for group in ("fair CRPS", "spread / error")
    )
    head = "".join(
        f"<th scope='col'>{column}</th>" for column in ["model", "base", *sizes, *sizes, "claims it", "holds"]
    )
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>"
        + "".join(f"<td>{cell}</td>" for cell in _size_cells(model, scores))
        + "</tr>"
        for name, model in scores["models"].items()
    )
    return (
        f"<table><thead><tr><td></td><td></td>{groups}<td></td><td></td></tr><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _size_cells(model: Mapping[str, Any], scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield the base, both scores with every number of members and their change from the base, claim and verdict."""
    by_size, gate = model["by"]["members"], model["gate"]
    yield (base := str(gate["base"]))
    for key, show in (("crps_fair", lambda value: amount(value, scores)), ("spread_skill", ratio)):
        reference = by_size[base][key]
        for size, entry in by_size.items():
            changes = size != base and reference and entry[key] is not None
            change = percent(entry[key] / reference - 1, sign=True) if changes else ""
            yield show(entry[key]) + (f" <span class='ci'>{change}</span>" if change else "")
    yield CLAIM[gate["claimed"]]
    yield VERDICT[gate["holds"]] + "".join(f" <span class='ci'>{fault}</span>" for fault in gate["faults"])


def _plain_sizes(scores: Mapping[str, Any]) -> list[str]:
    """Return the lines on the number of members for a terminal; none where all members alone were scored."""
    if "gate" not in scores["models"]["raw"]:
        return []
    sizes = list(scores["models"]["raw"]["by"]["members"])
    lines = [
        f"by number of members: fair CRPS in {scores['units']}, spread/error; who claims that it does not matter",
        f"{'model':<14}{_row(sizes, 9)}   {_row(sizes, 6)}  {'claims':<8}holds",
    ]
    for name, model in scores["models"].items():
        entries, gate = model["by"]["members"].values(), model["gate"]
        crps = _row((amount(entry["crps_fair"], scores) for entry in entries), 9)
        spread = _row((ratio(entry["spread_skill"]) for entry in entries), 6)
        verdict = ", ".join([VERDICT[gate["holds"]], *gate["faults"]])
        lines.append(f"{name:<14}{crps}   {spread}  {CLAIM[gate['claimed']]:<8}{verdict}")
    return lines


def _row(cells: Iterable[str], width: int) -> str:
    return "".join(f"{cell:>{width}}" for cell in cells)


def _cells(name: str, model: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, str]:
    cells = {
        "CRPS": _cell(amount(model["crps"], scores), model["ci95"]["crps"], lambda v: amount(v, scores)),
        "RMSE": amount(model["rmse"], scores),
        "bias": amount(model["bias"], scores, sign=True),
        "spread / error": ratio(model["spread_skill"]),
    }
    for column, key in SKILLS.items():
        if BESIDE[column] != name:
            cells[column] = _cell(percent(model[key], sign=True), model["ci95"][key], end)
    if name not in ("raw", "climatology"):
        cells["captured"] = _cell(percent(model["captured"]), model["ci95"]["captured"], end)
    return cells


def _cell(text: str, interval: list[float] | None, show: Callable[[float], str]) -> str:
    if not interval:
        return text
    return f"{text} <span class='ci'>[{show(interval[0])}, {show(interval[1])}]</span>"


def _plain(model: Mapping[str, Any], key: str) -> str:
    interval = model["ci95"][key]
    ends = f" [{end(interval[0])}, {end(interval[1])}]" if interval else ""
    return percent(model[key], sign=True) + ends


def _minus(text: str) -> str:
    return text.replace("-", "−")
