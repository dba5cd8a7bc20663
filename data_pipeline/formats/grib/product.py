"""Product: whether a message holds a forecast, a member or an analysis, or a statistic of an ensemble."""

from __future__ import annotations

from data_pipeline.formats.grib.keys import get_text, get_whole

ENSEMBLE_TEMPLATES = (2, 3, 4, 12, 13, 14, 199, 200)
"""GRIB2 product templates of statistics of an ensemble; the key `derivedForecast` says which statistic."""
OTHER_TEMPLATES = {
    5: "probability", 9: "probability", 6: "quantile", 10: "quantile", 86: "quantile", 87: "quantile",
    7: "error", 51: "category", 91: "category",
    89: "quantile", 90: "quantile", 201: "probability", 202: "probability",
}  # fmt: skip
"""GRIB2 product templates of other statistics."""
ENSEMBLE_STATISTICS = (
    "ensemble mean", "ensemble mean", "ensemble spread", "ensemble spread", "ensemble spread", "anomaly index",
    "cluster mean", "interquartile range", "ensemble minimum", "ensemble maximum",
)  # fmt: skip
"""Statistics by the value of `derivedForecast` (GRIB2 code table 4.7)."""

MARS_TYPES = {
    "em": "ensemble mean", "wem": "ensemble mean", "taem": "ensemble mean", "es": "ensemble spread",
    "wes": "ensemble spread", "ses": "ensemble spread", "taes": "ensemble spread", "cm": "cluster mean",
    "cs": "cluster spread", "cr": "cluster representative", "ep": "probability", "fp": "probability",
    "pb": "quantile", "pd": "quantile", "cd": "climate quantile", "efi": "extreme forecast index",
    "efic": "extreme forecast index", "sot": "shift of tail", "hcmean": "climate mean", "cl": "climatology",
    "ef": "error", "ea": "error", "me": "error", "eme": "error", "3g": "gradient", "4g": "gradient",
    "4i": "increment", "tu": "tube", "ci": "cluster information", "ed": "empirical distribution",
    "svar": "signal variance",
}  # fmt: skip
"""Types of MARS (`mars/type.table` of ecCodes) that are not a forecast, member or analysis."""

NCEP_FULL_FIELD = 1
NCEP_MEANS = (2, 3)
"""Values of `productIdentifier` in NCEP's local part of GRIB1 messages."""


def product_of(handle: int) -> str:
    """Return the name of the statistic that a message holds; empty for a forecast, a member or an analysis.

    Statistics, such as an ensemble mean, a spread, a probability or a quantile, are not members of the ensemble.
    """
    if get_whole(handle, "edition", 0) == 2:
        template = get_whole(handle, "productDefinitionTemplateNumber", 0)
        if template in ENSEMBLE_TEMPLATES:
            kind = get_whole(handle, "derivedForecast", 255)
            return ENSEMBLE_STATISTICS[kind] if kind < len(ENSEMBLE_STATISTICS) else "ensemble statistic"
        if template in OTHER_TEMPLATES:
            return OTHER_TEMPLATES[template]
    elif (field := get_whole(handle, "productIdentifier", NCEP_FULL_FIELD)) != NCEP_FULL_FIELD:
        return "ensemble mean" if field in NCEP_MEANS else "ensemble statistic"
    return MARS_TYPES.get(get_text(handle, "dataType", ""), "")
