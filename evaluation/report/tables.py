"""Tables of the scores, for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_pipeline.common.messages import listed
from data_pipeline.dates import Dates
from data_pipeline.ledger import omission_texts
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import Display
from evaluation.scoring.scoreboard import judging_score

INVALID = "†"
"""Marks models whose members depend on each other, so that their fair CRPS is not valid."""
COLUMNS = (
    "model", "CRPS", "fair", "vs raw, fair [95 %]", "plain", "vs EMOS, fair [95 %]", "captured", "plain",
    "spread/error", "members",
)  # fmt: skip
COLUMN_WIDTHS = ("<12", ">8", ">8", ">2", "<24", "<9", "<24", ">8", ">8", ">14", ">9")
"""Columns of the terminal's table: `captured` is by the fair CRPS; `members` is spread/error of the written members."""
JOINT = ("energy_score", "variogram_score")
CLAIM = {True: "yes", False: "no"}
VERDICT = {True: "yes", False: "no", None: "too few starts to tell"}


@dataclass(frozen=True)
class PageTable:
    """A table of a page; the first cell of each row is its name.

    Cells are plain text; intervals `[1, 2]` and lines after the first are shown in small print. `label` names the table
    for screen readers. `above` are headings of several columns each, with the numbers of columns. `marks` are the
    classes of some rows, and `links` the ids of the sections about each row.
    """

    label: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    above: Sequence[tuple[str, int]] = ()
    marks: Mapping[int, str] = field(default_factory=dict)
    links: Sequence[str] = ()


def forecast_title(scores: Mapping[str, Any]) -> str:
    """Return the predicted variable and lead times as text: `Temperature at 850 hPa, 48 h ahead`.

    >>> forecast_title({"target": "tp:24h", "lead_times": [24, 48]})
    'Total precipitation over 24 h, 24 and 48 h ahead'
    >>> forecast_title({"target": "2t:24h-mean", "lead_times": [48]})
    'Mean of 2 m temperature over 24 h, 48 h ahead'
    """
    return f"{variable_title(Variable.parse(scores['target']))}, {listed(scores['lead_times'])} h ahead"


def variable_title(variable: Variable) -> str:
    """Return a variable with its process, period and level for readers: `Temperature at 850 hPa`."""
    name = (f"{variable.process} of " if variable.process else "") + variable.title
    name += f" over {variable.period} h" if variable.period else ""
    name += f" at {variable.level} hPa" if variable.level else ""
    return name[0].upper() + name[1:]


def display_of(scores: Mapping[str, Any]) -> Display:
    """Return the units in which amounts are shown, and the factor from the units of the scores."""
    display = Variable.parse(scores["target"]).display
    return display if display.units else Display(scores["units"])


def judge_title(scores: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the name of the CRPS that judges models: the plain CRPS of a model whose fair one is not valid."""
    kinds = {judging_score([scores["models"][name]["crps_fair_valid"]]) for name in names}
    titles = {"crps_fair": "fair CRPS", "crps": "plain CRPS"}
    return titles[kinds.pop()] if len(kinds) == 1 else f"fair CRPS (where not valid {INVALID}: plain)"


def format_years(scores: Mapping[str, Any]) -> str:
    """Return the scored years or dates: `2016–2017`."""
    dates = Dates.from_json(scores["dates"])
    return str(dates).replace("-", "–") if dates == Dates.of_years(dates.years) else str(dates)


def format_amount(value: float | None, scores: Mapping[str, Any], sign: bool = False) -> str:
    """Return a value in the units of `display_of`, with as many decimals as show three digits of the raw CRPS."""
    if value is None:
        return "–"
    value, decimals = display_of(scores).factor * value, amount_decimals(scores)
    plus = "+" if sign else ""
    return with_minus(f"{value:{plus}.{decimals}f}" if decimals < 7 else f"{value:{plus}.2e}")


def amount_decimals(scores: Mapping[str, Any]) -> int:
    """Return the number of decimals that show three digits of the raw CRPS."""
    scale = display_of(scores).factor * (scores["models"]["raw"]["crps"] or 1.0)
    return max(0, 2 - math.floor(math.log10(scale)))


def format_percent(value: float | None, sign: bool = False, unit: str = " %") -> str:
    """Return a fraction in per cent, with one decimal below 100.

    >>> format_percent(0.123), format_percent(1.23451, unit="")
    ('12.3 %', '123')
    """
    if value is None:
        return "–"
    decimals = 1 if abs(round(100 * value, 1)) < 100 else 0
    number = round(100 * value, decimals) + 0.0  # avoid -0.0
    return with_minus(f"{number:{'+' if sign else ''}.{decimals}f}{unit}")


def format_ratio(value: float | None) -> str:
    """Return a ratio with two decimals."""
    return "–" if value is None else f"{value:.2f}"


def format_bound(value: float | None) -> str:
    """Return one end of an interval in per cent, without the sign."""
    return format_percent(value, unit="")


def plain_table(scores: Mapping[str, Any]) -> str:
    """Return the table for the terminal."""
    rows = [COLUMNS]
    for name, model in scores["models"].items():
        written = model["members"]
        fair = format_amount(model["crps_fair"], scores) + INVALID * (not model["crps_fair_valid"])
        rows.append(
            (
                name, format_amount(model["crps"], scores), fair, _plain(model, "skill_vs_raw_fair"),
                format_percent(model["skill_vs_raw"], sign=True), _plain(model, "skill_vs_emos_fair"),
                _valid(model, "captured_fair")[0], format_percent(model["captured"]),
                format_ratio(model["spread_skill"]),
                format_ratio(written["spread_skill"]) if written else "",
            )
        )  # fmt: skip
    if oracle := scores["oracle"]:
        crps = format_amount(oracle["crps_plain"], scores), format_amount(oracle["crps"], scores)
        rows.append(("oracle", *crps, "", "", "", "100 %", "100 %", format_ratio(oracle["spread_skill"]), ""))
    where = f"{scores['split']} {format_years(scores)}, {scores['n_dates']} starts"
    lines = [f"{forecast_title(scores)}: {where}; CRPS in {display_of(scores).units}"]
    lines += ["".join(map(format, (*cells[:3], "", *cells[3:]), COLUMN_WIDTHS)).rstrip() for cells in rows]
    lines += filter(None, (fair_crps_footnote(scores), omission_note(scores)))
    lines += [*_plain_stations(scores), *_plain_member_counts(scores), *_plain_methods(scores)]
    return "\n".join([*lines, *(f"warning: {text}" for text in scores["warnings"])])


def fair_crps_footnote(scores: Mapping[str, Any]) -> str:
    """Return the footnote on models whose fair CRPS is not valid; "" if there are none."""
    names = ", ".join(name for name, model in scores["models"].items() if not model["crps_fair_valid"])
    return (
        f"{INVALID} the members of {names} depend on each other: their fair CRPS can be lower than the CRPS of any "
        "distribution, so plain scores are shown instead"
        if names
        else ""
    )


def omission_parts(scores: Mapping[str, Any]) -> list[str]:
    """Return the numbers of cells and forecasts that were left out, and why, a sentence part each."""
    found, parts = scores["left_out"], []
    if found["cells"]:
        parts.append(f"{found['cells']:,} of {found['of']:,} cells have no analysis or lack a member")
    if (oracle := scores["oracle"]) and (without := scores["n_forecasts"] - oracle["n_forecasts"]):
        parts.append(f"{without:,} of {scores['n_forecasts']:,} forecasts have no oracle and do not count for captured")
    return parts


def omission_note(scores: Mapping[str, Any]) -> str:
    """Return the numbers of forecasts and cells that were left out, and why, as text; "" if there are none."""
    parts, forecasts = omission_parts(scores), omission_texts(scores["ledger"])
    groups = ["left out: " + "; ".join(parts)] * bool(parts) + ["forecasts: " + "; ".join(forecasts)] * bool(forecasts)
    return ". ".join(groups)


def _plain_stations(scores: Mapping[str, Any]) -> list[str]:
    """Return the CRPS at new stations, and at those of the training, a line each; [] if no station is new."""
    regions = scores["slices"].get("region", {})
    return [
        f"CRPS at {title} ({regions[region]['cells']}): "
        + ", ".join(
            f"{name} {format_amount(model['by']['region'][region]['crps'], scores)}"
            for name, model in scores["models"].items()
        )
        for region, title in (("new_stations", "new stations"), ("training_stations", "stations of the training"))
        if region in regions
    ]


def member_count_table(scores: Mapping[str, Any]) -> PageTable | None:
    """Return the table of all models by number of members, for the page; None if only all members were scored."""
    if "gate" not in scores["models"]["raw"]:
        return None
    sizes = list(scores["models"]["raw"]["by"]["members"])
    above = [("", 1), ("", 1), ("fair CRPS with", len(sizes)), ("spread / error with", len(sizes)), ("", 1), ("", 1)]
    rows = [[name, *_member_count_cells(model, scores)] for name, model in scores["models"].items()]
    columns = ["model", "base", *sizes, *sizes, "claims it", "holds"]
    return PageTable("Scores by number of members", columns, rows, above)


def method_table(scores: Mapping[str, Any]) -> PageTable | None:
    """Return the scores of all methods that make members, and how much they differ from the first; None for one."""
    shown = ["crps", *(name for name in scores["definitions"] if name.startswith(JOINT) and not name.endswith("_fair"))]
    rows = [
        [f"{model} {method}", *(_method_cell(own, entry["members"], key) for key in shown)]
        for model, entry in scores["models"].items()
        for method, own in entry.get("methods", {}).items()
    ]
    titles = ["plain CRPS", *(scores["definitions"][key]["title"] for key in shown[1:])]
    return PageTable("Methods that make members", ["model and method", *titles], rows) if rows else None


def _method_cell(entry: Mapping[str, Any], first: Mapping[str, Any], key: str) -> str:
    """Return a score, and its difference from that of the first method with the interval in per cent of the latter."""
    value, minus = entry[key], f"{key}_minus_members"
    if value is None:
        return "–"
    text = with_minus(f"{value:.4g}")
    if entry.get(minus) is None or not first[key]:
        return text
    ends = [format_bound(end / first[key]) for end in entry["ci95"][minus] or ()]
    return f"{text}\n{with_ends(format_percent(entry[minus] / first[key], sign=True), ends)}"


def _plain_methods(scores: Mapping[str, Any]) -> list[str]:
    """Return the lines of `method_table` for the terminal, score by score."""
    if (table := method_table(scores)) is None:
        return []
    lines = ["members by method; after each score: its difference from that of the first method, and its 95 % interval"]
    for number, title in enumerate(table.columns[1:], 1):
        lines += [title, *(f"  {row[0]:<30} {row[number].replace(chr(10), ' ')}" for row in table.rows)]
    return lines


def _member_count_cells(model: Mapping[str, Any], scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield the base, both scores for each number of members with their change from the base, claim and result."""
    by_member_count, gate = model["by"]["members"], model["gate"]
    yield (base := str(gate["base"]))
    for key, show in (("crps_fair", lambda value: format_amount(value, scores)), ("spread_skill", format_ratio)):
        reference = by_member_count[base][key]
        for size, entry in by_member_count.items():
            changes = size != base and reference and entry[key] is not None
            change = format_percent(entry[key] / reference - 1, sign=True) if changes else ""
            yield show(entry[key]) + (f"\n{change}" if change else "")
    yield CLAIM[gate["claimed"]]
    yield "\n".join([VERDICT[gate["holds"]], *gate["faults"]])


def _plain_member_counts(scores: Mapping[str, Any]) -> list[str]:
    """Return the lines on the number of members for the terminal; [] if only all members were scored."""
    if "gate" not in scores["models"]["raw"]:
        return []
    sizes, units = list(scores["models"]["raw"]["by"]["members"]), display_of(scores).units
    lines = [
        f"by number of members: fair CRPS in {units}, spread/error; claims: scores do not depend on it",
        f"{'model':<14}{_row(sizes, 9)}   {_row(sizes, 6)}  {'claims':<8}holds",
    ]
    for name, model in scores["models"].items():
        entries, gate = model["by"]["members"].values(), model["gate"]
        crps = _row((format_amount(entry["crps_fair"], scores) for entry in entries), 9)
        spread = _row((format_ratio(entry["spread_skill"]) for entry in entries), 6)
        verdict = ", ".join([VERDICT[gate["holds"]], *gate["faults"]])
        lines.append(f"{name:<14}{crps}   {spread}  {CLAIM[gate['claimed']]:<8}{verdict}")
    return lines


def _row(cells: Iterable[str], width: int) -> str:
    return "".join(f"{cell:>{width}}" for cell in cells)


def _valid(model: Mapping[str, Any], key: str, sign: bool = False) -> tuple[str, list[float] | None]:
    """Return a score in per cent and its interval; the plain score, marked, if the fair one is not valid."""
    mark = ""
    if key.endswith("_fair") and not model["crps_fair_valid"]:
        key, mark = key.removesuffix("_fair"), INVALID
    return format_percent(model[key], sign=sign) + mark, model["ci95"][key]


def _plain(model: Mapping[str, Any], key: str) -> str:
    text, interval = _valid(model, key, sign=True)
    return with_ends(text, map(format_bound, interval or ()))


def with_ends(text: str, ends: Iterable[str]) -> str:
    """Return a number as text with the ends of its interval, if both are known."""
    shown = [*ends]
    return f"{text} [{', '.join(shown)}]" if shown and "–" not in shown else text


def with_minus(text: str) -> str:
    """Return a number as text with a true minus sign."""
    return text.replace("-", "−")
