"""The verb `evaluate`: score correctors, the raw ensemble, climatology and the oracle on the same forecasts.

Writes `report.html` into `run_dir`, and `scores.json`, `scores.csv`, `scores.nc`, `model_card.md` and `figures/` beside
it or, for a task with several targets, into one folder for each. On a mesh all ranks score, and the first rank writes.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

from omegaconf import DictConfig

from conf import build, plain, verb
from data_pipeline.common.cost_meter import CostMeter, gather_usage, print_usage
from data_pipeline.common.messages import say
from evaluation.forecasters.fold_correctors import batch_groups
from evaluation.report.provenance import run_facts
from evaluation.report.tables import plain_table
from evaluation.run.entrants import Entrants, audit_leaks, gather_models
from evaluation.run.forecast_writer import check_writing, write_forecasts
from evaluation.run.given_correctors import at_stations_of_data, load_correctors, noise_by_name, station_counts
from evaluation.run.plan import Plan
from evaluation.run.results import Evaluation, load_finished
from evaluation.run.scored_data import ScoredData, open_data
from evaluation.run.training_runs import pool_runs, with_first_runs
from evaluation.scoring.partial_scores import PartialScores
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.scoring.scoring import ScoringOptions, score_models, scoring_workers
from evaluation.significance.field_significance import longest_lead_blocks
from evaluation.tables.score_json import SCORES_FORMAT
from models.device import watch_gpu
from models.members.options import CorrectionOptions
from models.parallel.mesh import Mesh, join_mesh
from models.parallel.single_process import Processes, SingleProcess
from models.protocol import claims


def plan_of(cfg: DictConfig, mesh: Processes) -> Plan:
    """Check the options; return the plan of the evaluation."""
    return Plan.of(
        plain(cfg), build(cfg.data.archive), build(cfg.data.split), build(cfg.task), build(cfg.cluster), mesh
    )


@verb("evaluate", partial(plan_of, mesh=SingleProcess()))
def main(cfg: DictConfig) -> None:
    """Evaluate on all ranks of the mesh."""
    with CostMeter() as meter, join_mesh(plain(cfg)["mesh"]) as mesh:
        run(cfg, mesh, meter)
        print_usage(meter, mesh)


def run(cfg: DictConfig, mesh: Mesh, meter: CostMeter) -> None:
    """Check the options, open correctors and data, score, print the table, write the results."""
    plan = plan_of(cfg, mesh)
    watch_gpu(meter, plan.device)
    correctors = load_correctors(plan)
    inputs = mesh.run_on_first(plan.fingerprint)
    writing = check_writing(plan.options["write_forecasts"], mesh)
    if writing is None and (done := mesh.run_on_first(lambda: load_finished(plan.run_dir, plan.folders, inputs))):
        say("\n\n".join(plain_table(scores) for scores in done))
        say(f"{plan.run_dir} already holds the scores of these correctors and data; nothing was done")
        return

    correctors = at_stations_of_data(plan, correctors, mesh)
    data = open_data(plan, correctors, mesh)
    entrants = gather_models(plan, correctors, data, mesh)
    leaks = audit_leaks(plan, entrants, data, mesh)
    partial_scores = PartialScores(plan.run_dir, json.dumps([inputs, *entrants.models], sort_keys=True), mesh)
    board = score_entrants(plan, entrants, data, partial_scores, mesh)
    about = {
        "format": SCORES_FORMAT, "split": plan.options["split"], "members": data.forecasts.members,
        "dates": plan.dates.to_json(), "levels": plan.options["quantile_levels"],
        "ledger": data.forecasts.ledger.to_json(), "inputs": inputs, "leak_audit": leaks,
    }  # fmt: skip
    if moved := station_counts(correctors):
        about["stations"] = {name: counts._asdict() for name, counts in moved.items()}
    notes, facts = entrants.warnings(board.lost), run_facts(gather_usage(meter, mesh))
    evaluation = Evaluation(plan, data, entrants, board, about, notes, mesh, facts)
    evaluation.publish()
    if writing is not None:
        made = CorrectionOptions(plan.options["quantile_levels"], plan.options["seed"], plan.methods[0])
        wrote = write_forecasts(
            writing, evaluation.models, data.forecasts, made, *plan.open_past(), plan.device,
            list(board.written), with_first_runs(noise_by_name(plan, entrants.correctors), plan.runs),
        )  # fmt: skip
        say(f"wrote {', '.join(map(str, wrote))}")
    partial_scores.remove()


def score_entrants(
    plan: Plan, entrants: Entrants, data: ScoredData, partial_scores: PartialScores, mesh: Mesh
) -> Scoreboard:
    """Score all models; the runs of a model are joined."""
    options, choice, files = plan.options, plan.choice, plan.files
    starts, leads = data.forecasts.times()
    cells = len(plan.task.targets) * math.prod(data.forecasts.grid.shape)
    climate = choice.open_climate(
        data.domain, plan.task, plan.split.dates("train", plan.task.lead_times), plan.dates,
        lambda days: plan.source(days).fingerprint,
    )  # fmt: skip
    past, current = plan.open_past()
    scoring = ScoringOptions(
        options["batch_size"], options["seed"], plan.member_counts, written={*entrants.correctors, *entrants.own},
        levels=options["quantile_levels"], methods=plan.methods, past=past, current=current,
        noise=noise_by_name(plan, entrants.correctors),
        optional=["climatology", "persistence"], device=plan.device,
        groups=batch_groups(entrants.compared.values(), data.valid, data.forecasts.groups_present),
        scores=choice.scores, diagrams=choice.diagrams, thresholds=choice.thresholds, extremeness=climate,
        undrawn={name for name, file in files.items() if not file.drawn},
        blocks=longest_lead_blocks(starts.numpy(), leads.numpy(), cells),
        memory_bytes=options["memory_bytes"],
        partial=partial_scores,
    )  # fmt: skip
    with scoring_workers(plan.cluster) as workers:
        scoring = replace(scoring, workers=workers, jobs=plan.cluster.at_once)
        board = score_models(entrants.models, data.forecasts, data.weights, entrants.oracle, scoring, mesh)
    mesh.run_on_first(board.check_targets)
    board = replace(pool_runs(board, plan.runs), lost=mesh.broadcast(dict(board.lost)))
    drawn = {name for name, file in files.items() if file.drawn} | ({"lapse_rate"} & {*entrants.models})
    alone = with_first_runs(entrants.compared, plan.runs)
    return replace(board, independent=drawn | {name for name, one in alone.items() if claims(one.first.model).any_size})


if __name__ == "__main__":
    main()
