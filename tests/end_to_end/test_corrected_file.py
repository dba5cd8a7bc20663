"""The corrected file differs from its input only in the values of targets, and its members score better."""

import eccodes
import numpy as np
import pytest
from twin_project import FORECAST, keys, messages


@pytest.fixture(scope="module")
def corrected(project, run_verb):
    run_verb(project, "correct", "corrector=runs/emos/corrector.safetensors", f"input={FORECAST}", "output=out.grib")
    return project / "out.grib"


def test_only_values_of_targets_differ_from_the_input(project, corrected):
    """Keys of `grib_ls` and order of messages are unchanged; all other messages are copied byte for byte."""
    changed = 0
    for before, after in zip(messages(project / FORECAST), messages(corrected), strict=True):
        assert keys(before) == keys(after)
        same = eccodes.codes_get_message(before) == eccodes.codes_get_message(after)
        target = keys(before)["shortName"] == "2t" and keys(before)["stepRange"] == "48"
        assert same != target
        changed += target
    assert changed == 5 * 8


def test_the_corrected_members_keep_their_ranks_and_score_better(project, corrected):
    def fields(path):
        found = {}
        for handle in messages(path):
            if eccodes.codes_get(handle, "shortName") == "2t" and eccodes.codes_get(handle, "step") == 48:
                year = eccodes.codes_get(handle, "dataDate") // 10000
                found.setdefault(year, {})[eccodes.codes_get(handle, "number")] = eccodes.codes_get_values(handle)
        return {year: np.stack([members[n] for n in sorted(members)]) for year, members in found.items()}

    truth = {}
    for handle in messages(project / "data/twin/analysis.sfc.20180108"):
        if eccodes.codes_get(handle, "shortName") == "2t":
            truth[eccodes.codes_get(handle, "validityDate")] = eccodes.codes_get_values(handle)
    raw, better = fields(project / FORECAST), fields(corrected)
    crps = {"raw": [], "corrected": []}
    for year, members in raw.items():
        after = better[year]
        for i in range(5):
            for j in range(5):
                # Packing may make two members equal, but never swaps them.
                assert (after[i] <= after[j])[members[i] < members[j]].all()
        for name, x in (("raw", members), ("corrected", after)):
            y = truth[year * 10000 + 110]
            crps[name].append(abs(x - y).mean() - abs(x[:, None] - x[None]).mean() / 2)
    assert np.mean(crps["corrected"]) < 0.95 * np.mean(crps["raw"])


def test_the_corrected_file_opens_in_cfgrib_with_the_same_coordinates(project, corrected):
    cfgrib = pytest.importorskip("cfgrib")
    before, after = (
        cfgrib.open_dataset(path, indexpath="", filter_by_keys={"shortName": "2t"})
        for path in (project / FORECAST, corrected)
    )
    assert before.coords.equals(after.coords)
    assert before.t2m.attrs == after.t2m.attrs
