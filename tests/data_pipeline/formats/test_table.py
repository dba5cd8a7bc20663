"""Tables: whatever their form, each value is found at its start, lead time, member and station."""

import sqlite3
from contextlib import closing

import deepweather as dw
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import open_analysis, open_ensemble

TIMES = ["init_time", "lead_time", "valid_time"]
PLACES = {"011": (47.0, 11.0, 600.0), "7": (52.5, 13.25, 34.0), "x": (-30.0, -71.5, 2200.0)}


def rows(seed=0, starts=4, leads=(24, 30), members=3, first=1):
    """Return a wide table of random forecasts with gaps, and observations that depend on valid time and station."""
    random = np.random.default_rng(seed)
    made = []
    for start in pd.date_range("2018-01-30T12:00", periods=starts, freq="2D"):
        for lead in leads:
            for station in PLACES:
                if random.random() < 0.9:
                    valid = start + pd.Timedelta(hours=lead)
                    values = {f"m{first + k}": random.normal().__round__(4) for k in range(members)}
                    observed = round(float(valid.day + PLACES[station][0] / 100), 4)
                    times = dict(zip(TIMES, (start, lead, valid), strict=True))
                    made.append({**times, "station": station, **values, "obs": observed})
    return pd.DataFrame(made)


def stations():
    return pd.DataFrame([{"station": name, "lat": a, "lon": b, "altitude": c} for name, (a, b, c) in PLACES.items()])


def melted(table):
    members = [name for name in table if name[1:].isdigit()]
    kept = [name for name in table if name not in members]
    return table.melt(id_vars=kept, value_vars=members, var_name="member", value_name="value")


def harp(table):
    """Return the table with names of harp, times in seconds since 1970, and the members of a model."""
    seconds = {name: table[name].astype("datetime64[s]").astype(np.int64) for name in ("init_time", "valid_time")}
    names = {"init_time": "fcdate", "lead_time": "leadtime", "valid_time": "validdate", "station": "SID"}
    members = {name: f"EPS_mbr{int(name[1:]):03}" for name in table if name[1:].isdigit()}
    return table.assign(**seconds, parameter="T2m", units="K").rename(columns=names | members)


WRITERS = {
    ".csv": lambda table, path: table.to_csv(path, index=False),
    ".notes": lambda table, path: path.write_text("# two\n# notes\n" + table.to_csv(index=False)),
    ".tsv": lambda table, path: table.to_csv(path, index=False, sep="\t"),
    ".dec": lambda table, path: table.to_csv(path, index=False, sep=";", decimal=","),
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
}
FORMS = {
    "wide": lambda table: table,
    "long": melted,
    "start and lead time": lambda table: table.drop(columns="valid_time"),
    "start and valid time": lambda table: table.drop(columns="lead_time"),
    "valid and lead time": lambda table: table.drop(columns="init_time").rename(columns={"valid_time": "Valid"}),
    "names of harp": harp,
}


def check(table, forecasts, observations):
    """Compare datasets with the rows of a wide table; every other place has no value."""
    (name,), (seen,) = forecasts.data_vars, observations.data_vars
    count = 0
    for row in table.to_dict("records"):
        at = {"point": list(observations.station.values).index(row["station"])}
        found = forecasts[name].sel(init_time=row["init_time"], lead_time=row["lead_time"]).isel(at)
        for member in found.number.values:
            assert found.sel(number=member).item() == np.float32(row[f"m{member}"])
            count += 1
        assert observations[seen].sel(time=row["valid_time"]).isel(at).item() == np.float32(row["obs"])
    assert np.isfinite(forecasts[name]).sum() == count
    assert np.isfinite(observations[seen]).sum() == len({(row.valid_time, row.station) for row in table.itertuples()})
    for k, station in enumerate(observations.station.values):
        place = [float(observations[each][k]) for each in ("latitude", "longitude", "altitude")]
        assert place == [*PLACES[station]]


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from([(24,), (6, 24, 48)]),
    st.integers(2, 4),
    st.sampled_from([*FORMS]),
)
def test_each_value_is_at_its_place(seed, starts, leads, members, form):
    table = rows(seed, starts, leads, members, first=seed % 2)
    if len(table):
        check(table, *dw.open_table(FORMS[form](table).sample(frac=1, random_state=seed), stations()))


@pytest.mark.parametrize(("ending", "form"), [(".csv", form) for form in FORMS] + [(each, "wide") for each in WRITERS])
def test_files_are_read_as_they_were_written(tmp_path, form, ending):
    table = rows()
    path = tmp_path / f"mine{ending}"
    WRITERS[ending](FORMS[form](table), path)
    WRITERS[".csv"](stations(), tmp_path / "stations.csv")
    check(table, *dw.open_table(path))
    given = {"names": {"T2m": "2t"} if form == "names of harp" else {"value": "2t in K"}}
    forecasts, observations = open_ensemble(path, **given, missing="mask"), open_analysis(path, **given)
    check(table, forecasts[["2t"]].compute(), observations[["2t"]].compute())


def test_a_table_of_sqlite(tmp_path):
    with closing(sqlite3.connect(tmp_path / "FCTABLE.sqlite")) as database:
        harp(rows()).to_sql("FC", database, index=False)
        stations().to_sql("notes", database, index=False)
    check(rows(), *dw.open_table(tmp_path / "FCTABLE.sqlite", stations()))


def test_a_changed_table_is_another_archive(tmp_path):
    path, prints = tmp_path / "mine.csv", set()
    for factor, altitude in ((1, 600), (2, 600), (2, 601)):
        table = rows()[lambda found: found.station == "7"].assign(station="011")
        table.m1 *= factor
        table.to_csv(path, index=False)
        stations().replace(600.0, altitude).to_csv(tmp_path / "stations.csv", index=False)
        found = open_ensemble(path, names={"value": "2t in K"}, missing="mask")["2t"].sel(number=1)
        assert np.nansum(found) == pytest.approx(table.m1.sum(), rel=1e-5)
        assert found.altitude == altitude
        prints.add(Archive([str(path)], [str(path)]).fingerprint)
    assert len(prints) == 3


TWICE = rows().iloc[[0, 0]].assign(m2=[1.0, 2.0])
REFUSED = [
    (rows().drop(columns=TIMES), "no times"),
    (rows().drop(columns=["lead_time", "valid_time"]), "no lead times"),
    (rows().drop(columns=["init_time"]).rename(columns={"valid_time": "time"}), "time may be the start or the valid"),
    (rows().assign(init_time="31/12/2018"), "'31/12/2018'"),
    (rows().assign(lead_time=6), "row 1, the first of"),
    (rows().assign(site=0), "station and site could each be"),
    (rows().assign(station=None), "station has no value"),
    (rows().assign(station="unknown"), "the first is unknown"),
    (rows().assign(lat=np.arange(len(rows())), lon=0.0), "several values of lat"),
    (TWICE, "row 1, the first of 1, it has another m1"),
    (melted(rows()).assign(member="mean"), "number the members"),
    (melted(rows()).assign(m0=1.0, m1=2.0), "in columns (m0) and in rows (member)"),
    (harp(rows()).assign(units=["K"] + ["degC"] * (len(rows()) - 1)), "'K' and 'degC'"),
    (rows()[[*TIMES, "station"]], "no column of numbers"),
    (rows().assign(m3=["0.1"] * 20 + ["missing"] * (len(rows()) - 20)), "row 21, the first of 2, m3 is 'missing'"),
    (rows().assign(level=850), "levels and quantiles are not read"),
    ([1.0], "must be a frame or the path of a file, got list"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_would_be_wrong_is_refused(table, words):
    with pytest.raises(InputError) as refused:
        dw.open_table(table, stations())
    assert words in str(refused.value)


def test_a_table_without_positions_is_refused(tmp_path):
    rows().to_csv(tmp_path / "mine.csv", index=False)
    with pytest.raises(InputError, match=r"mine.csv has no positions; .* stations.csv beside it"):
        open_ensemble(tmp_path / "mine.csv")
