"""The model card states the facts of the corrector's file and the scores of scores.json, and nothing that they lack."""

import hashlib
import re

import yaml
from memory_archive import GRID

from models.corrector import Corrector


def table(text, title):
    """The rows of the table of a section, each a list of cells."""
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert set(map(len, rows)) == {len(rows[0])}
    return [rows[0], *rows[2:]]


def test_facts_are_those_of_the_file_and_scores_those_of_the_evaluation(emos, scores_of, tmp_path):
    """Amounts of the table of scores are rounded to the decimals that they show."""
    scores = scores_of("run", f"correctors={{mine: {emos}}}", "references=[raw,climatology]")
    text = (tmp_path / "run/model_card.md").read_text()
    corrector, facts = Corrector.load(emos), dict(table(text, "Corrector and training data"))
    assert facts["grid"] == str(GRID)
    assert facts["model"] == type(corrector.model).__name__
    assert facts["targets"] == ", ".join(map(str, corrector.task.targets))
    assert facts.get("members", "") == str(corrector.provenance.get("members", ""))
    assert facts["trained on"].startswith(corrector.provenance["train_dates"][0][0][:4])
    assert facts["SHA-256"] == f"begins with {hashlib.sha256(emos.read_bytes()).hexdigest()[:16]}"
    nearest = scores["leak_audit"]["models"]["mine"]["nearest_days"]
    assert f"{nearest} days from a scored date" in text
    assert all(warning in text for warning in scores["warnings"])
    assert yaml.safe_load(text.split("---\n")[1]) == {
        "library_name": "deepweather", "tags": ["weather", "ensemble-post-processing"],
    }  # fmt: skip
    assert re.findall(r"^# .*", text, re.M) == ["# mine: 2 m temperature, 48 h ahead"]
    header, *rows = table(text, "Scores")
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    for name, model in scores["models"].items():
        shown = re.match(r"[\d.]+", found[name]["fair CRPS"])[0]
        assert shown == f"{model['crps_fair']:.{len(shown.partition('.')[2])}f}"
    assert f"{scores['n_dates']} starts" in text
