"""The files of an evaluation: scores, tables, report and model cards."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.archive import Archive
from data_pipeline.common.files import write_text
from data_pipeline.common.messages import say
from data_pipeline.common.progress import Progress, watched
from evaluation.forecasters.corrector_checks import training_members
from evaluation.report.coastlines import shows_earth
from evaluation.report.model_card import model_card
from evaluation.report.shown_data import ExampleForecast, ExpertMap, MapData, TargetReport
from evaluation.report.tables import plain_table
from evaluation.run.entrants import Entrants
from evaluation.run.given_correctors import each_file
from evaluation.run.member_counts import MemberCountClaim, member_count_claims, with_gates
from evaluation.run.plan import Plan
from evaluation.run.scored_data import ScoredData
from evaluation.run.shown_cases import chosen_forecasts, show_experts, show_forecast
from evaluation.run.shown_corrector import choose_shown
from evaluation.run.training_runs import with_first_runs
from evaluation.scoring.scoreboard import DISTRIBUTION, Scoreboard
from evaluation.scoring.scoring import Forecaster
from evaluation.significance.field_significance import block_times, field_p_values
from evaluation.significance.model_comparison import discoveries
from evaluation.tables.csv_tables import StartScores, write_score_table, write_start_table, write_station_table
from evaluation.tables.score_dataset import write_score_file
from evaluation.tables.score_json import SCORES_FORMAT, scores_of
from evaluation.tables.score_rows import ScoreRow, ScoreRows
from models.corrector import Corrector
from models.corrector_summary import summary_rows
from models.parallel.mesh import Mesh


def load_finished(
    run_dir: str | Path, folders: Collection[Path], inputs: Mapping[str, Any]
) -> list[dict[str, Any]] | None:
    """Return the scores in `folders` if all have this format and these inputs and `run_dir` a report, else None."""
    found: list[dict[str, Any]] = []
    if not Path(run_dir, "report.html").exists():
        return None
    for folder in folders:
        try:
            scores = json.loads((folder / "scores.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        same = scores.get("format") == SCORES_FORMAT and scores.get("inputs") == inputs
        if not same or not (folder / "scores.csv").exists():
            return None
        found.append(scores)
    return found


@dataclass(frozen=True)
class Shown:
    """The scores of one target, the rows of its scorecard, and its forecasts on maps."""

    scores: dict[str, Any]
    gains: Sequence[ScoreRow]
    cases: Mapping[str, ExampleForecast]
    experts: ExpertMap | None


@dataclass(frozen=True)
class Evaluation:
    """Everything that scores, report and tables need; `publish` writes the results."""

    plan: Plan
    data: ScoredData
    entrants: Entrants
    board: Scoreboard
    about: Mapping[str, Any]
    notes: Sequence[str]
    mesh: Mesh
    facts: Mapping[str, str]
    """End, duration and energy of the run."""

    @property
    def models(self) -> dict[str, Forecaster]:
        """All models; of a model with several runs its first one."""
        return with_first_runs(self.entrants.models, self.plan.runs)

    @property
    def alone(self) -> dict[str, Corrector]:
        """The given correctors; {} if one of them consists of the correctors of several folds."""
        given = self.entrants.correctors
        one_each = all(len(folds.correctors) == 1 for folds in given.values())
        return {name: folds.first for name, folds in given.items()} if one_each else {}

    def publish(self) -> None:
        """Print the tables, then write scores and report. All ranks compute the shown forecasts."""
        run_dir, folders = self.plan.run_dir, self.plan.folders
        with Progress("scores with their intervals"):
            found = self.mesh.run_on_first(lambda: [self._scores(target) for target in range(len(folders))])
        # The user sees the results first: the files and figures take longer than the scores of a station.
        say("\n\n".join(plain_table(scores) for scores, _ in found))
        shown = [self._shown(target, folder, *found[target]) for target, folder in enumerate(folders)]
        with Progress("figures and tables of the report"):
            self.mesh.run_on_first(lambda: self._write(shown))
        wrote = ", ".join(f"{folder}/scores.json" for folder in folders)
        say(f"wrote {wrote} and {run_dir}/report.html")

    def _shown(self, target: int, folder: Path, scores: dict[str, Any], rows: Sequence[ScoreRow]) -> Shown:
        """Write the tables of a target; return its scores, and the forecasts that the report shows."""
        with Progress("tables of the scores"):
            gains, shown = self.mesh.run_on_first(lambda: self._tables(target, folder, scores, rows))
        best, domain, device = scores["best"]["model"], self.data.domain, self.plan.device
        forecasts, raw, model = self.data.forecasts, self.models["raw"], self.models[best]
        cases = {
            name: show_forecast(self.board, forecasts, row, target, raw, model, domain, device, gain)
            for name, (row, gain) in watched(shown.items(), "forecasts of the report: forecast", len(shown))
        }
        experts = None
        if best in self.alone:
            experts = show_experts(self.alone[best].model, forecasts, shown["median"][0], model, domain, device)
        return Shown(scores, gains, cases, experts)

    def _scores(self, target: int) -> tuple[dict[str, Any], Sequence[ScoreRow]]:
        """Return the scores of a target, and their rows."""
        plan, board = self.plan, self.board
        meaning = self.data.forecasts.meanings[plan.task.target_channels[target]].to_json()
        rows = ScoreRows.of(board, target, meaning["units"])
        scores = {**scores_of(board, target, rows), **self.about}
        scores |= {"meaning": meaning, "units": scores["units"] or meaning["units"]}
        scores["warnings"] = [*self.notes, *scores["warnings"]]
        scores["best"] = choose_shown(plan.options["shown_corrector"], self.alone, scores, plan.runs)
        return with_gates(scores, self._claims()), rows.rows

    def _tables(
        self, target: int, folder: Path, scores: Mapping[str, Any], rows: Sequence[ScoreRow]
    ) -> tuple[list[ScoreRow], dict[str, tuple[int, float]]]:
        """Write the tables; return the rows of the scorecard, and the rows and gains of the shown forecasts."""
        board = self.board
        write_score_table(folder / "scores.csv", rows)
        write_score_file(folder / "scores.nc", board, target, rows, scores["meaning"]["units"])
        write_start_table(folder / "starts.csv", board, target)
        write_station_table(folder / "stations.csv", board, target, scores["units"])
        best = scores["best"]["model"]
        wanted = best, DISTRIBUTION, board.judging_score(best)
        gains = [row for row in rows if (row.model, row.form, row.score) == wanted]
        return gains, chosen_forecasts(board, target, best, self._lead)

    @property
    def _lead(self) -> int:
        """The longest lead time that was scored, which the maps show."""
        return int(self.board.lead_times.max())

    def _claims(self) -> dict[str, MemberCountClaim]:
        plan, entrants = self.plan, self.entrants
        trained = {
            name: training_members(corrector, path, plan.member_counts)
            for name, path, corrector in (each_file(plan, entrants.correctors) if plan.member_counts else ())
        }
        board, runs = self.board, plan.runs
        compared = {name: folds.first for name, folds in entrants.compared.items() if name not in board.lost}
        return member_count_claims(
            with_first_runs(compared, runs), with_first_runs(trained, runs), plan.member_counts, board.tallies
        )

    def _map_data(self, target: int, shown: Shown) -> MapData:
        lead, grid = self._lead, self.board.grid
        place = self.board.task.lead_times.index(lead)
        crps, fair, bias, squared, expected = (
            {name: tally.per_cell[statistic][place, target].value for name, tally in self.board.tallies.items()}
            for statistic in ("crps", "crps_fair", "error", "squared_error", "expected_squared_error")
        )
        # The twin has an oracle, and other simulations are not read from files.
        archive, land = self.plan.archive, self.data.land
        simulated = archive.oracle is not None or not isinstance(archive, Archive)
        return MapData(
            grid, lead, crps, fair, bias, shown.cases, land, shows_earth(grid, land, simulated), squared, expected,
            significant=self._significant(target, shown.scores["best"]["model"]), experts=shown.experts,
        )  # fmt: skip

    def _significant(self, target: int, best: str) -> np.ndarray | None:
        """Return where the shown model and raw differ at the longest lead time, None if there are too few dates."""
        board, statistic = self.board, self.board.judging_score(best)
        model, raw = (board.tallies[name].per_block(statistic) for name in (best, "raw"))
        if model is None or raw is None or (blocks := board.tallies["raw"].blocks) is None:
            return None
        return discoveries(field_p_values(model[:, target], raw[:, target], block_times(blocks, board.init_times)))

    def _write(self, shown: Sequence[Shown]) -> None:
        from evaluation.report.page import write_report  # imports matplotlib

        run_dir, folders = self.plan.run_dir, self.plan.folders
        targets = [
            TargetReport(
                "" if folder == run_dir else folder.name, one.scores, self._map_data(target, one), one.gains,
                StartScores.read(folder / "starts.csv"),
            )
            for target, (folder, one) in enumerate(zip(folders, shown, strict=True))
        ]  # fmt: skip
        write_report(run_dir, targets, self.facts)
        given = with_first_runs({**self.entrants.own, **self.entrants.correctors}, self.plan.runs)
        for folder, one in zip(folders, shown, strict=True):
            if folds := given.get(one.scores["best"]["model"]):
                first = folds.first
                facts = summary_rows(first.task, first.grid, first.spec, first.provenance)
                write_text(folder / "model_card.md", model_card(one.scores, facts, len(folds.correctors)))
            else:
                (folder / "model_card.md").unlink(missing_ok=True)
        # The scores are written last: if they exist, the report and the table are complete.
        for folder, one in zip(folders, shown, strict=True):
            write_text(folder / "scores.json", json.dumps(one.scores, indent=1, allow_nan=False))
