"""GRIB messages on grids whose rows are no latitudes, with the keys of the centres that publish them."""

import eccodes
from grib_parts import packed

ROWS, COLUMNS = 4, 5
_LAMBERT = {
    "gridType": "lambert", "Nx": COLUMNS, "Ny": ROWS, "LoVInDegrees": 265.0, "Latin1InDegrees": 25.0,
    "Latin2InDegrees": 25.0, "DxInMetres": 250_000, "DyInMetres": 200_000, "uvRelativeToGrid": 1,
}  # fmt: skip
_STEREOGRAPHIC = {
    "Nx": COLUMNS, "Ny": ROWS, "orientationOfTheGridInDegrees": 249.0, "DxInMetres": 100_000, "DyInMetres": 150_000,
    "resolutionAndComponentFlags": 8,
}  # fmt: skip
_TWO = {"latitude": 30.0, "longitude": 240.0}
PLANES = {
    "NBM": (2, {"centre": "kwbc", **_LAMBERT, "LaDInDegrees": 25.0}, _TWO),
    "HARMONIE": (
        1,
        {
            "centre": "enmi", **_LAMBERT, "LoVInDegrees": 15.0, "Latin1InDegrees": 63.0,
            "Latin2InDegrees": 63.0, "DxInMetres": 2500, "DyInMetres": 2500,
        },
        {"latitude": 50.3, "longitude": 0.3},
    ),
    "two parallels, ellipsoid": (
        2,
        {"shapeOfTheEarth": 5, **_LAMBERT, "LaDInDegrees": 40.0, "Latin1InDegrees": 30.0, "Latin2InDegrees": 60.0},
        _TWO,
    ),
    "lambert_lam": (2, {**_LAMBERT, "gridType": "lambert_lam", "LaDInDegrees": 25.0}, _TWO),
    "south": (
        2,
        {**_LAMBERT, "LaDInDegrees": -35, "Latin1InDegrees": -35, "Latin2InDegrees": -30},
        {"latitude": -50.0, "longitude": 260.0},
    ),
    "polar stereographic": (2, {"sample": "polar_stereographic_pl", **_STEREOGRAPHIC, "LaDInDegrees": 60.0}, _TWO),
    "polar stereographic of GRIB1": (1, {"sample": "polar_stereographic_pl", **_STEREOGRAPHIC}, _TWO),
    "south pole": (
        2,
        {"sample": "polar_stereographic_pl", **_STEREOGRAPHIC, "LaDInDegrees": -71.0, "projectionCentreFlag": 128},
        {"latitude": -60.0, "longitude": 30.0},
    ),
    "mercator": (
        2,
        {
            "gridType": "mercator", "Ni": COLUMNS, "Nj": ROWS, "LaDInDegrees": 20.0, "DiInMetres": 250_000,
            "DjInMetres": 300_000,
        },
        {"latitude": -2.0, "longitude": 175.0},
    ),
    "equal area": (
        2,
        {
            "gridType": "lambert_azimuthal_equal_area", "Nx": COLUMNS, "Ny": ROWS,
            "standardParallelInMicrodegrees": 54_900_000, "centralLongitudeInMicrodegrees": -2_500_000,
            "xDirectionGridLengthInMillimetres": 200_000_000, "yDirectionGridLengthInMillimetres": 200_000_000,
        },
        {"latitude": 50.0, "longitude": 2.0},
    ),
    "HRDPS": (
        2,
        {
            "centre": "cwao", "sample": "rotated_ll_pl", "Ni": COLUMNS, "Nj": ROWS, "uvRelativeToGrid": 1,
            "latitudeOfSouthernPoleInDegrees": -36.08852, "longitudeOfSouthernPoleInDegrees": 245.305142,
            "iDirectionIncrementInDegrees": 4.0, "jDirectionIncrementInDegrees": 5.0,
        },
        {"latitude": -12.0, "longitude": 345.0},
    ),
    "rotated of GRIB1": (
        1,
        {
            "sample": "rotated_ll_pl", "Ni": COLUMNS, "Nj": ROWS, "latitudeOfSouthernPoleInDegrees": -40.0,
            "longitudeOfSouthernPoleInDegrees": 10.0, "iDirectionIncrementInDegrees": 1.0,
            "jDirectionIncrementInDegrees": 1.0,
        },
        {"latitude": -1.0, "longitude": -2.0},
    ),
}  # fmt: skip
"""Edition, keys and the first point in scanning mode 64 of each grid."""


def plane_message(name, values, first=None, **keys):
    """A message of values in the order of the file on the grid `name`, whose `first` point replaces its own."""
    edition, own, corner = PLANES[name]
    own, kinds = {**own, "scanningMode": 64, **keys}, ("latitude", "longitude")
    handle = eccodes.codes_grib_new_from_samples(f"{own.pop('sample', 'regular_ll_pl')}_grib{edition}")
    micro = "InDegrees" if own.get("gridType") != "lambert_azimuthal_equal_area" else ""
    corner = corner if first is None else dict(zip(kinds, first, strict=True))
    if kinds_of_steps := [key for key in own if key.endswith("DirectionIncrementInDegrees")]:
        sides = (own["scanningMode"] >> 6 & 1 or -1, -1 if own["scanningMode"] >> 7 else 1)
        counts = (ROWS - 1, COLUMNS - 1)
        for kind, side, count, step in zip(kinds, sides, counts, reversed(kinds_of_steps), strict=True):
            own[f"{kind}OfLastGridPointInDegrees"] = corner[kind] + side * count * own[step]
    if "gridType" in own:
        eccodes.codes_set(handle, "gridType", own.pop("gridType"))
    for kind in kinds:
        own[f"{kind}OfFirstGridPoint{micro}"] = corner[kind] if micro else round(corner[kind] * 1e6)
    return packed(handle, values, **own)
