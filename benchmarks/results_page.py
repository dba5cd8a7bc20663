"""Write the tables of docs/results.md and docs/results.json from the runs of `make results`.

python -m benchmarks.results_page runs/results runs/heat docs/results

Each part of the page is written only if its runs exist. Other parts keep their tables, so one part can be computed at
a time.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any
from xml.etree import ElementTree

import numpy as np

from data_pipeline.common.files import atomic_write
from evaluation.report.tables import (
    CLAIM,
    VERDICT,
    display_of,
    forecast_title,
    format_amount,
    format_percent,
    format_ratio,
)
from evaluation.scoring.scoreboard import headline_keys, judging_score

PARTS = ("twin", "joint", "levers", "large", "curve", "sizes")
"""Parts of the page with tables, each between two marks (`marks`)."""
MODEL_LABELS = {
    "raw": "raw", "climatology": "climatology", "emos": "EMOS", "mlp": "MLP", "unet": "U-Net",
    "blend_unet": "blend U-Net", "transformer": "transformer", "independent": "independent transformer",
    "mixed": "MLPs and U-Nets together", "smoe_unet": "published SMoE U-Net", "deep_weather": "Deep Weather",
    "poet": "PoET", "kinds": "U-Nets, blend U-Nets and transformers together",
    "blended": "U-Nets and blend U-Net together",
}  # fmt: skip
COMMITTEE = "s"
"""Suffix of a committee's name: the seeds `unet-0` and `unet-1` form the committee `unets`."""
JOINED = ("mixed", "kinds", "blended")
"""Committees of several models."""


@dataclass(frozen=True)
class ModelRow:
    """One model of a scoreboard, with the entries of all its seeds (`NAME-SEED`), or with its single entry."""

    name: str
    runs: tuple[str, ...]
    entries: tuple[Mapping[str, Any], ...]

    @property
    def crps(self) -> str:
        """The key of the CRPS that judges the model."""
        return judging_score(entry["crps_fair_valid"] for entry in self.entries)

    @property
    def skill(self) -> str:
        """The key of the skill against raw by this CRPS."""
        return headline_keys(self.entries[0])[0]

    @property
    def captured(self) -> str:
        """The key of the captured share by this CRPS."""
        return headline_keys(self.entries[0])[1]

    def mean(self, key: str) -> float | None:
        """Return the mean of a score over the seeds."""
        values = [entry[key] for entry in self.entries]
        return None if None in values else mean(values)

    def hull(self, key: str) -> tuple[float, float] | None:
        """Return the smallest interval that holds the 95 % intervals of all seeds."""
        return hull([entry["ci95"][key] for entry in self.entries])

    @property
    def label(self) -> str:
        """The name in the tables."""
        single = self.name.removesuffix(COMMITTEE)
        if self.name not in MODEL_LABELS and single in MODEL_LABELS:
            return f"committee of {MODEL_LABELS[single]}s"
        return MODEL_LABELS.get(self.name, self.name)


def hull(intervals: Sequence[Sequence[float] | None]) -> tuple[float, float] | None:
    """Return the smallest interval that holds all intervals, None if there are none.

    >>> hull([[1, 3], [2, 4]])
    (1, 4)
    """
    known = [interval for interval in intervals if interval]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def models_of(scores: Mapping[str, Any]) -> dict[str, ModelRow]:
    """Return the models of a scoreboard in its order, with the seeds of each model together."""
    runs: dict[str, list[str]] = {}
    for run in scores["models"]:
        name, _, seed = run.rpartition("-")
        runs.setdefault(name if seed.isdigit() else run, []).append(run)
    return {name: ModelRow(name, tuple(own), tuple(scores["models"][r] for r in own)) for name, own in runs.items()}


def choose_best(models: Mapping[str, ModelRow], folder: Path) -> str:
    """Return the model with the lowest mean validation loss, or its committee. Test years are not used.

    A model with fewer seeds than others is not chosen: its mean is more uncertain.
    """

    def loss(model: ModelRow) -> float:
        files = [folder / run / "metrics.csv" for run in model.runs]
        if len(files) < most or not all(file.exists() for file in files):
            return np.inf  # not trained by gradient descent, or too few seeds
        losses = [np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)[:, 3].min() for file in files]
        return float(np.mean(losses))

    most = max(len(model.runs) for model in models.values())
    best = min(models, key=lambda name: loss(models[name]))
    return best + COMMITTEE if best + COMMITTEE in models else best


def score_table(scores: Mapping[str, Any], models: Mapping[str, ModelRow], best: str) -> str:
    """Return the scores of all models, by the fair CRPS where it is valid; others are marked as plain."""
    lines = ["| model | fair CRPS | vs raw | captured | of each seed | spread/error |", "|---|---|---|---|---|---|"]
    for name, model in models.items():
        captured = model.mean(model.captured) if name not in ("raw", "climatology") else None
        several = len(model.entries) > 1
        seeds = [format_percent(entry[model.captured], unit="") for entry in model.entries if several]
        mark = "**" if name == best else ""
        cells = [
            f"{mark}{model.label}{mark}",
            format_amount(model.mean(model.crps), scores) + " (plain)" * (model.crps == "crps"),
            ""
            if name == "raw"
            else interval(format_percent(model.mean(model.skill), sign=True), model.hull(model.skill)),
            "" if captured is None else f"{mark}{format_percent(captured)}{mark}",
            ", ".join(seeds),
            format_ratio(model.mean("spread_skill")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if oracle := scores["oracle"]:
        if members := scores.get("members"):
            crps, raw = ceiling(oracle["crps"], members), scores["models"]["raw"]["crps_fair"]
            captured = format_percent((raw - crps) / (raw - oracle["crps"]))
            lines.append(f"| ceiling with {members} members | {format_amount(crps, scores)} | | {captured} | | |")
        lines.append(
            f"| oracle | {format_amount(oracle['crps'], scores)} | | 100 % | | {format_ratio(oracle['spread_skill'])} |"
        )
    return "\n".join(lines)


def ceiling(oracle: float, members: int) -> float:
    """Return the least expected CRPS of a forecast that knows the state only by the mean of M members: o √(1 + 1/M).

    For an oracle N(μ, σ²) with CRPS o, the mean of M draws has the variance σ²/M. The best forecast is then normal with
    this mean and the variance σ²(1 + 1/M), and the error has this variance too. It also knows σ, which M members do not
    show, so a real correction stays further above the oracle.
    """
    return oracle * math.sqrt(1 + 1 / members)


def interval(text: str, bounds: tuple[float, float] | None) -> str:
    """Return a percentage with the interval of a fraction."""
    if bounds is None:
        return text
    low, high = (format_percent(bound, unit="") for bound in bounds)
    return f"{text} [{low}, {high}]"


def difference_table(scores: Mapping[str, Any], models: Mapping[str, ModelRow]) -> str:
    """Return the table of differences in CRPS between each model and earlier models, for each seed.

    A model is compared with the model before it and with the U-Net; a committee with its single model, the committee
    before it and the committee of U-Nets.
    """
    lines = ["| CRPS of | minus that of | difference | 95 % intervals of the seeds |", "|---|---|---|---|"]
    singles = {name + COMMITTEE: name for name in models if name + COMMITTEE in models}
    together = [name for name in models if name in singles or name in JOINED]
    ladder = [name for name in models if name != "climatology" and name not in together]
    for names, base in ((ladder, "unet"), (together, "unet" + COMMITTEE)):
        for index, name in enumerate(names):
            others = [*([singles[name]] if name in singles else []), *names[max(index - 1, 0) : index]]
            others += [base] if base in names[:index] else []
            lines += [difference_row(scores, models[name], models[other]) for other in dict.fromkeys(others)]
    return "\n".join(lines)


def difference_row(scores: Mapping[str, Any], model: ModelRow, other: ModelRow) -> str:
    """Return the row of two models; `other` comes before `model` on the scoreboard."""
    count = max(len(model.runs), len(other.runs))
    pairs = [scores["pairs"][model.runs[i % len(model.runs)]][other.runs[i % len(other.runs)]] for i in range(count)]
    difference = format_amount(mean(pair["crps_minus"] for pair in pairs), scores, sign=True)
    bounds = [
        " to ".join(format_amount(bound, scores, sign=True) for bound in pair["ci95"]) for pair in pairs if pair["ci95"]
    ]
    return f"| {model.label} | {other.label} | {difference} | {'; '.join(bounds)} |"


def task_section(folder: Path, runs: Path, suffix: str = "") -> tuple[str, dict[str, Any]]:
    """Return the section of the scores in `folder`, and the main numbers of its best model, a run in `runs`."""
    scores = json.loads((folder / "scores.json").read_text("utf-8"))
    models = models_of(scores)
    best = choose_best(models, runs)
    single = best.removesuffix(COMMITTEE)
    title = f"### {forecast_title(scores)} ({display_of(scores).units}){suffix}"
    text = f"{title}\n\n{score_table(scores, models, best)}\n\n{difference_table(scores, models)}"
    figures = {
        "best": best,
        "crps": models[best].mean(models[best].crps),
        "captured": models[best].mean(models[best].captured),
        "captured_by_model": {n: m.mean(m.captured) for n, m in models.items() if n not in ("raw", "climatology")},
        "single": {"model": single, "captured": models[single].mean(models[single].captured)},
        "captured_by_seed": [entry[models[single].captured] for entry in models[single].entries],
    }
    return text, figures


def learning_curve(curve: Path, large: Path, starts: int = 768) -> tuple[str, dict[str, Any]]:
    """Return the table of captured shares by number of training starts, and these shares by target, model and starts.

    `curve` holds the scores of the entries `MODEL-of-STARTS`. `large` holds the scores with `starts` starts, of the
    entries `MODEL-0` or, without seeds, `MODEL`.
    """
    texts, figures = [], {}
    for file in sorted(curve.glob("*/scores.json")):
        target = file.parent.name
        scores, more = (json.loads(path.read_text("utf-8")) for path in (file, large / target / "scores.json"))
        found: dict[str, dict[int, float]] = {}
        for name, entry in scores["models"].items():
            model, separator, count = name.partition("-of-")
            if separator:
                found.setdefault(model, {})[int(count)] = entry[headline_keys(entry)[1]]
        for model, shares in found.items():
            if entry := more["models"].get(f"{model}-0") or more["models"].get(model):
                shares[starts] = entry[headline_keys(entry)[1]]
        counts = sorted({count for shares in found.values() for count in shares})
        lines = [f"| model | {' | '.join(f'{count} starts' for count in counts)} |", "|---" * (len(counts) + 1) + "|"]
        for model, shares in found.items():
            cells = [format_percent(shares[count]) if count in shares else "" for count in counts]
            lines.append(f"| {MODEL_LABELS.get(model, model)} | {' | '.join(cells)} |")
        texts.append(f"### {forecast_title(scores)}, captured by number of training starts\n\n" + "\n".join(lines))
        figures[target] = {
            model: {str(count): shares[count] for count in sorted(shares)} for model, shares in found.items()
        }
    return "\n\n".join(texts), figures


LEVERS = {
    "former": "U-Net from all fields, raw ensemble",
    "fields": "MLP from all fields, raw ensemble",
    "climate": "the MLP, climate baseline",
    "changes": "the MLP, and changes since the lead time before",
    "formulas": "the MLP, and all other formulas",
    "unet": "U-Net with a path of single cells, the same inputs",
    "together": "this U-Net and the MLP before it together",
}
"""Entries of the part `levers`, each with one lever more than the entry before."""


def lever_table(scores: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the table and figures of the gain of each lever over the entry before, and of all levers over `former`.

    Gains are relative differences in CRPS with their 95 % intervals.
    """
    lines = ["| model | captured | CRPS against the row before | CRPS against the first row |", "|---|---|---|---|"]
    figures: dict[str, Any] = {}
    before: str | None = None
    for name in LEVERS:
        own = scores["models"][name]
        gains = {key: _relative(scores, name, other) for key, other in (("before", before), ("first", "former"))}
        captured = own[headline_keys(own)[1]]
        figures[name] = {"captured": captured} | {key: gain for key, gain in gains.items() if gain}
        cells = [
            f"{gain[0]:+.1%} [{gain[1]:+.1%}, {gain[2]:+.1%}]".replace("%", " %").replace("-", "−") if gain else ""
            for gain in gains.values()
        ]
        lines.append(f"| {LEVERS[name]} | {format_percent(captured)} | {' | '.join(cells)} |")
        before = name
    title = f"### {forecast_title(scores)}, difficulty 0.5"
    return f"{title}\n\n" + "\n".join(lines), figures


def _relative(scores: Mapping[str, Any], name: str, other: str | None) -> tuple[float, float, float] | None:
    """Return (CRPS of a model - CRPS of another) / CRPS of the other, and its 95 % interval."""
    if other is None or other == name:
        return None
    pair = scores["pairs"][name][other]
    base = scores["models"][other][pair["score"]]
    return pair["crps_minus"] / base, pair["ci95"][0] / base, pair["ci95"][1] / base


def gate_section(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the section on numbers of members other than in training, and the result of the gate for each model."""
    scores = json.loads((folder / "scores.json").read_text("utf-8"))
    sizes = list(scores["models"]["raw"]["by"]["members"])
    columns = [f"{kind} of {size}" for kind in ("fair CRPS", "spread/error") for size in sizes]
    lines = [f"| model | {' | '.join(columns)} | claims | holds |", "|---" * (len(columns) + 3) + "|"]
    figures = {}
    for name, model in models_of(scores).items():
        (entry,) = model.entries
        entries, gate = entry["by"]["members"].values(), entry["gate"]
        crps, spread = (
            (format_amount(e["crps_fair"], scores) for e in entries),
            (format_ratio(e["spread_skill"]) for e in entries),
        )
        cells = [
            model.label,
            *crps,
            *spread,
            CLAIM[gate["claimed"]],
            ", ".join([VERDICT[gate["holds"]], *gate["faults"]]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
        figures[name] = {"claims": gate["claimed"], "holds": gate["holds"]}
    title = f"### {forecast_title(scores)}, by number of members ({display_of(scores).units})"
    return f"{title}\n\n" + "\n".join(lines), figures


def properties(file: Path, prefix: str) -> dict[str, float]:
    """Return the properties with `prefix` in a JUnit report of the tests, by the rest of their name."""
    found = {p.attrib["name"]: float(p.attrib["value"]) for p in ElementTree.parse(file).iter("property")}
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def marks(part: str) -> tuple[str, str]:
    """Return the marks before and after the tables of a part.

    >>> marks("twin")[1]
    '<!-- end of twin -->'
    """
    return f"<!-- {part}: made by `make results` -->", f"<!-- end of {part} -->"


def replace_tables(page: str, part: str, tables: str) -> str:
    """Return a page with `tables` between the marks of a part.

    >>> begin, end = marks("twin")
    >>> replace_tables(f"a{begin}b{end}c", "twin", "x").replace(chr(10), "") == f"a{begin}x{end}c"
    True
    """
    begin, end = marks(part)
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{tables}\n\n{end}{rest.split(end)[1]}"


def target_sections(folder: Path, suffix: str) -> tuple[str, dict[str, Any]]:
    """Return the sections and figures of all targets of one model, each of which has a folder with its scores."""
    files = sorted(folder.glob("*/scores.json"))
    own = {file.parent.name: task_section(file.parent, folder, suffix) for file in files}
    return "\n\n".join(text for text, _ in own.values()), {target: found for target, (_, found) in own.items()}


def computed_parts(runs: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the tables of each part that has been computed, and their figures."""
    texts: dict[str, str] = {}
    figures: dict[str, Any] = {}
    tasks = [task for task in ("t2m", "t850", "z500") if (runs / task / "scores.json").exists()]
    if tasks:
        sections = {task: task_section(runs / task, runs / task) for task in tasks}
        figures["twin"] = {task: found for task, (_, found) in sections.items()}
        texts["twin"] = "\n\n".join(text for text, _ in sections.values())
    text, own = target_sections(runs / "joint", ", one model for three targets")
    if own:
        texts["joint"], figures["twin_joint"] = text, own
        figures["single"] = {target: found["single"] for target, found in own.items()}
    levers = {
        file.parent.name: lever_table(json.loads(file.read_text("utf-8")))
        for file in sorted((runs / "half").glob("*/scores.json"))
    }
    if levers:
        texts["levers"] = "\n\n".join(text for text, _ in levers.values())
        figures["levers"] = {target: own for target, (_, own) in levers.items()}
    text, own = target_sections(runs / "large", ", one model for three targets, 768 starts")
    if own:
        texts["large"], figures["twin_large"] = text, own
    text, own = learning_curve(runs / "large" / "curve", runs / "large")
    if own:
        texts["curve"], figures["learning_curve"] = text, own
    if (runs / "sizes" / "scores.json").exists():
        texts["sizes"], figures["sizes"] = gate_section(runs / "sizes")
    return texts, figures


def main(runs: Path, heat: Path, results: Path) -> None:
    """Write `results`.md and `results`.json; parts and figures without a run stay as they are."""
    texts, figures = computed_parts(runs)
    if exams := sorted(heat.glob("smoe-*/test_check.json")):
        figures["smoe_heat"] = {"within_1pct": [json.loads(file.read_text())["within"] for file in exams]}
    if (published := runs / "published.xml").exists():
        crps = properties(published, "dillingen.")
        figures["dillingen"] = {"crps": min(crps.values())} | crps
        if monsoon := properties(published, "monsoon."):
            figures["monsoon"] = monsoon
    page, numbers = results.with_suffix(".md"), results.with_suffix(".json")
    text = page.read_text("utf-8")
    for part, tables in texts.items():
        text = replace_tables(text, part, tables)
    before = json.loads(numbers.read_text("utf-8")) if numbers.exists() else {}
    with atomic_write(page, "w") as file:
        file.write(text)
    with atomic_write(numbers, "w") as file:
        json.dump(before | figures, file, indent=1)
        file.write("\n")
    others = [name for name in before if name not in figures]
    print(f"renewed: {', '.join(figures) or 'nothing'}; not renewed: {', '.join(others) or 'nothing'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("runs", "heat", "results"):
        parser.add_argument(name, type=Path)
    main(**vars(parser.parse_args()))
