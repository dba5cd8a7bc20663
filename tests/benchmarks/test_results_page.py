"""The tables and figures of docs/results.* show the runs, and validation years choose the best model."""

import json
import math
import shutil

import pytest

from benchmarks.results_page import LEVERS, PARTS, main, marks

RAW, ORACLE = 0.4, 0.2
CRPS = {
    "raw": RAW, "climatology": 1.5, "emos": 0.3, "mlp-0": 0.28, "mlp-1": 0.27, "unet-0": 0.25, "unet-1": 0.26,
    "blend_unet-0": 0.25, "transformer-0": 0.26, "mlps": 0.27, "unets": 0.245, "blend_unets": 0.24,
    "transformers": 0.255,
}  # fmt: skip


def scores():
    """The keys of scores.json that `results_page` reads; each interval is its value ± 0.012.

    Members of the transformers depend on each other: they have no fair CRPS.
    """

    def interval(value):
        return [value - 0.012, value + 0.012]

    def entry(name, crps):
        valid = "transformer" not in name
        own = judged(valid, crps=crps, skill_vs_raw=1 - crps / RAW, captured=(RAW - crps) / (RAW - ORACLE))
        intervals = {key: interval(value) for key, value in own.items()}
        return own | {"crps_fair_valid": valid, "spread_skill": 0.9, "ci95": intervals}

    names = list(CRPS)
    pairs = {
        name: {o: {"crps_minus": CRPS[name] - CRPS[o], "ci95": interval(CRPS[name] - CRPS[o])} for o in names[:i]}
        for i, name in enumerate(names)
    }
    return {
        "target": "2t", "units": "K", "lead_times": [48], "members": 8, "pairs": pairs,
        "models": {name: entry(name, crps) for name, crps in CRPS.items()},
        "oracle": {"crps": ORACLE, "spread_skill": 1.0},
    }  # fmt: skip


def judged(fair, **numbers):
    """These numbers by the score that judges the model, and numbers that must not be read by the other one."""
    endings = {"_fair" * fair: None, "_fair" * (not fair): 0.999}
    return {
        key + ending: value if other is None else other
        for key, value in numbers.items()
        for ending, other in endings.items()
    }


@pytest.fixture
def runs(tmp_path):
    """A folder of runs, in which the mean validation loss of the MLPs is below that of the U-Nets."""
    for task in ("t2m", "t850", "z500"):
        write_losses(
            tmp_path / "runs" / task, {"mlp-0": 0.05, "mlp-1": 0.06, "unet-0": 0.04, "unet-1": 0.08, "lenet-0": 0.01}
        )
        write_scores(tmp_path / "runs" / task, scores())
    parts = (f"{begin}\nold {part}\n{end}\n" for part in PARTS for begin, end in [marks(part)])
    (tmp_path / "results.md").write_text("before\n" + "".join(parts) + "after\n")
    return tmp_path


def renew(runs):
    """Renew the page; return it, and the figures."""
    main(runs / "runs", runs / "heat", runs / "results")
    return (runs / "results.md").read_text(), json.loads((runs / "results.json").read_text())


def write_scores(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scores.json").write_text(json.dumps(content))


def write_losses(folder, losses):
    """Write the table of epochs of each run; the lowest validation loss is that of the second epoch."""
    for name, loss in losses.items():
        (folder / name).mkdir(parents=True)
        rows = "\n".join(f"{epoch},{8 * epoch},0.1,{each},1e-3" for epoch, each in enumerate((9.0, loss, 0.09), 1))
        (folder / name / "metrics.csv").write_text(f"epoch,step,train_loss,val_loss,rate\n{rows}\n")


def test_the_page_shows_the_figures_of_the_runs(runs):
    (runs / "runs/published.xml").write_text(
        '<testsuites><testsuite><testcase><properties><property name="dillingen.mlps" value="0.78"/>'
        '<property name="dillingen.emos" value="0.7"/><property name="monsoon.emos" value="62.9"/></properties>'
        "</testcase></testsuite></testsuites>"
    )
    for seed, within in (("1", 99.9), ("2", 100.0)):
        (runs / f"heat/smoe-{seed}").mkdir(parents=True)
        (runs / f"heat/smoe-{seed}/test_check.json").write_text(json.dumps({"within": within}))
    page, figures = renew(runs)
    assert figures["smoe_heat"] == {"within_1pct": [99.9, 100.0]}
    assert figures["dillingen"] == {"crps": 0.7, "mlps": 0.78, "emos": 0.7}
    assert figures["monsoon"] == {"emos": 62.9}
    best = figures["twin"]["t850"]
    assert best["best"] == "mlps", "neither the best model of the test years nor a model with a single run"
    assert math.isclose(best["captured"], (0.4 - 0.27) / 0.2)
    assert best["captured_by_seed"] == pytest.approx([0.6, 0.65])
    assert math.isclose(best["captured_by_model"]["unet"], 0.725)
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old twin" not in page
    assert "old joint" in page
    assert "| U-Net | 0.255 | +36.2 % [33.8, 38.7] | 72.5 % | 75.0, 70.0 | 0.90 |" in page
    assert "| transformer | 0.260 (plain) | +35.0 % [33.8, 36.2] | 70.0 % |  | 0.90 |" in page
    assert "| U-Net | MLP | −0.020 | −0.042 to −0.018; −0.022 to +0.002 |" in page
    assert "| committee of MLPs | MLP | −0.005 | −0.022 to +0.002; −0.012 to +0.012 |" in page
    assert "| ceiling with 8 members | 0.212 | | 93.9 % | | |" in page, "√(1 + 1/8) of the oracle's 0.2 is 0.2121"
    assert renew(runs)[0] == page, "a second call writes the same page"


def test_a_model_for_several_targets_has_a_section_for_each(runs):
    for target, title in (("2t", "2 m temperature"), ("t@850", "Temperature at 850 hPa")):
        write_scores(runs / "runs/joint" / target, scores() | {"target": target})
        assert f"### {title}, 48 h ahead (K), one model for three targets" in renew(runs)[0]
    write_losses(runs / "runs/joint", {"mlp-0": 0.05, "mlp-1": 0.04, "unet-0": 0.02, "unet-1": 0.03})
    _, figures = renew(runs)
    assert [*figures["twin_joint"]] == ["2t", "t@850"]
    assert {found["best"] for found in figures["twin_joint"].values()} == {"unets"}
    assert {found["best"] for found in figures["twin"].values()} == {"mlps"}


def test_the_large_profile_has_a_section_and_a_learning_curve(runs):
    for target in ("2t", "z@500"):
        found = scores() | {"target": target}
        write_scores(runs / "runs/large" / target, found)
        shares = {"mlp-of-256": 0.5, "mlp-of-64": 0.25, "unet-of-64": 0.125, "lenet-of-64": 0.3, "emos-of-64": 0.2}
        few = {name: {"crps_fair_valid": True, "captured_fair": share} for name, share in shares.items()}
        write_scores(runs / "runs/large/curve" / target, found | {"models": {"raw": {}} | few})
    write_scores(runs / "runs/joint/2t", scores())
    page, figures = renew(runs)
    assert [*figures["twin_large"]] == ["2t", "z@500"]
    assert figures["learning_curve"]["z@500"] == {
        "mlp": {"64": 0.25, "256": 0.5, "768": pytest.approx(0.6)},
        "unet": {"64": 0.125, "768": pytest.approx(0.75)},
        "lenet": {"64": 0.3},
        "emos": {"64": 0.2, "768": pytest.approx(0.5)},
    }, "the runs of 768 starts are `mlp-0`, `unet-0` and, without a seed, `emos`"
    assert set(figures["single"]["2t"]) == {"model", "captured"}
    assert "48 h ahead (K), one model for three targets, 768 starts" in page
    assert "| model | 64 starts | 256 starts | 768 starts |" in page
    assert "| MLP | 25.0 % | 50.0 % | 60.0 % |" in page
    assert "| lenet | 30.0 % |  |  |" in page


def test_levers_are_compared_with_the_row_before_and_with_the_first(runs):
    """CRPS of 0.4, 0.38, ..., 0.28: the third is 5.3 % below the second, and 10 % below the first."""
    crps = {name: 0.4 - 0.02 * index for index, name in enumerate(LEVERS)}
    names = list(crps)
    minus = {name: {o: crps[name] - crps[o] for o in names[:i]} for i, name in enumerate(names)}
    pairs = {
        name: {o: {"score": "crps_fair", "crps_minus": d, "ci95": [d - 0.004, -0.004]} for o, d in others.items()}
        for name, others in minus.items()
    }
    models = {name: judged(True, crps=value, captured=(0.5 - value) / 0.3) for name, value in crps.items()}
    models = {name: model | {"crps_fair_valid": True} for name, model in models.items()}
    found = {"target": "2t", "units": "K", "lead_times": [48], "pairs": pairs, "models": models}
    write_scores(runs / "runs/half/2t", found)
    page, figures = renew(runs)
    assert "### 2 m temperature, 48 h ahead, difficulty 0.5" in page
    assert "| U-Net from all fields, raw ensemble | 33.3 % |  |  |" in page
    assert "| 46.7 % | −5.3 % [−6.3 %, −1.1 %] | −10.0 % [−11.0 %, −1.0 %] |" in page
    assert figures["levers"]["2t"]["together"]["first"] == pytest.approx([-0.3, -0.31, -0.01])
    assert figures["levers"]["2t"]["former"] == {"captured": pytest.approx(1 / 3)}


def test_parts_without_a_run_stay_as_they_are(runs, capsys):
    page, figures = renew(runs)
    assert {*figures} == {"twin"}
    shutil.rmtree(runs / "runs")
    write_scores(runs / "runs/joint/2t", scores())
    capsys.readouterr()
    renewed, later = renew(runs)
    assert capsys.readouterr().out == "renewed: twin_joint, single; not renewed: twin\n"
    end = marks("twin")[1]
    assert renewed.split(end)[0] == page.split(end)[0]
    assert "| U-Net | MLP |" in renewed.split(end)[1]
    assert later["twin"] == figures["twin"]
