"""The members of a corrected file score better and keep their ranks; cfgrib opens it like its input."""

import eccodes
import numpy as np
import pytest
from twin_project import FORECAST, messages


@pytest.fixture(scope="module")
def corrected(project, run_verb):
    run_verb(project, "correct", "corrector=runs/emos/corrector.safetensors", f"input={FORECAST}", "output=out.grib")
    return project / "out.grib"


def test_the_corrected_members_keep_their_ranks_and_score_better(project, corrected):
    def fields(path):
        found = {}
        for handle in messages(path):
            if [eccodes.codes_get(handle, key) for key in ("shortName", "step")] == ["2t", 48]:
                year = eccodes.codes_get(handle, "dataDate") // 10000
                found.setdefault(year, {})[eccodes.codes_get(handle, "number")] = eccodes.codes_get_values(handle)
        return {year: np.stack([members[n] for n in sorted(members)]) for year, members in found.items()}

    truth = {
        eccodes.codes_get(handle, "validityDate"): eccodes.codes_get_values(handle)
        for handle in messages(project / "data/twin/analysis.sfc.20180108")
        if eccodes.codes_get(handle, "shortName") == "2t"
    }
    better, crps = fields(corrected), []
    for year, members in fields(project / FORECAST).items():
        # Packing may make two members equal, but never swaps them.
        smaller = members[:, None] < members
        assert (better[year][:, None] <= better[year])[smaller].all()
        y = truth[year * 10000 + 110]
        crps.append([abs(x - y).mean() - abs(x[:, None] - x).mean() / 2 for x in (members, better[year])])
    raw, corrected = np.mean(crps, axis=0)
    assert corrected < 0.95 * raw


def test_the_corrected_file_opens_in_cfgrib_with_the_same_coordinates(project, corrected):
    cfgrib = pytest.importorskip("cfgrib")
    before, after = (
        cfgrib.open_dataset(path, indexpath="", filter_by_keys={"shortName": "2t"})
        for path in (project / FORECAST, corrected)
    )
    assert before.coords.equals(after.coords)
    assert before.t2m.attrs == after.t2m.attrs
