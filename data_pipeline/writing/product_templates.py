"""Product templates: headers for messages that hold a statistic of a corrected ensemble instead of a member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import eccodes

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.keys import opened
from data_pipeline.writing.encode import ORDER
from data_pipeline.writing.marks import postprocessed, template_of

PRODUCT_TEMPLATES = {
    "mean": (199, 200), "spread": (199, 200), "quantile": (89, 90), "probability": (201, 202),
}  # fmt: skip
"""Templates of post-processed statistics: at one time, and over an interval (WMO Manual on Codes, FM 92)."""
MARS_TYPE = {"mean": "em", "spread": "es", "quantile": "pb", "probability": "ep"}
DERIVED_FORECAST = {"mean": 0, "spread": 4}
"""WMO table 4.7: unweighted mean, and spread, of all members."""
BELOW_LOWER, ABOVE_UPPER, ABOVE_LOWER, BELOW_UPPER = 0, 1, 3, 4
"""WMO table 4.9, probability type."""
MOST_QUANTILES = 1000
"""Levels are k/n with n up to this number: `quantileValue` k of `totalNumberOfQuantiles` n."""


@dataclass(frozen=True)
class StatisticHeader:
    """Headers of a statistic: mean, spread, quantile at `level`, or probability above or below `limit`.

    `limit` is in the units of the messages. Call the object with a member's message to give it the statistic's headers.
    """

    kind: Literal["mean", "spread", "quantile", "probability"]
    members: int
    level: float | None = None
    above: bool = True
    limit: float | None = None

    def __call__(self, message: bytes) -> bytes:
        """Return the message of a member with the headers of the statistic; the values are still the member's.

        GRIB1 has headers for mean and spread only, as ECMWF's types `em` and `es`.
        """
        if message[7] == 1:
            return self._first_edition(message)
        message = postprocessed(message)
        over_time = template_of(message) in (72, 73)
        keys: dict[str, int] = {"productDefinitionTemplateNumber": PRODUCT_TEMPLATES[self.kind][over_time]}
        if self.kind in DERIVED_FORECAST:
            keys |= {"derivedForecast": DERIVED_FORECAST[self.kind], "numberOfForecastsInEnsemble": self.members}
        elif self.kind == "quantile":
            keys |= dict(zip(("quantileValue", "totalNumberOfQuantiles"), fraction_of(self.level), strict=True))
        else:
            assert self.limit is not None
            factor, scaled = scaled_limit(self.limit)
            side, code = ("Lower", ABOVE_LOWER) if self.above else ("Upper", BELOW_UPPER)
            keys |= {"numberOfForecastsInEnsemble": self.members, "probabilityType": code}
            keys |= {"forecastProbabilityNumber": 0, "totalNumberOfForecastProbabilities": 1}
            keys |= {f"scaleFactorOf{side}Limit": factor, f"scaledValueOf{side}Limit": scaled}
        return self._with(message, keys)

    def _first_edition(self, message: bytes) -> bytes:
        if self.kind not in DERIVED_FORECAST:
            raise InputError(
                f"GRIB1 has no header for a {self.kind}, and the input is GRIB1; convert it with ecCodes' grib_set -s "
                "edition=2 IN OUT, or remove this product"
            )
        return self._with(message, {"perturbationNumber": 0})

    def _with(self, message: bytes, keys: dict[str, int]) -> bytes:
        try:
            with opened(message) as handle:
                local = eccodes.codes_is_defined(handle, "marsType")
                if message[7] == 1 and not local:
                    raise InputError(
                        f"GRIB1 of this centre has no header for an ensemble {self.kind}; convert the input with "
                        "ecCodes' grib_set -s edition=2 IN OUT, or remove this product"
                    )
                for name in sorted(keys, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
                    eccodes.codes_set(handle, name, keys[name])
                if self.kind == "probability":
                    unused = "Upper" if self.above else "Lower"
                    eccodes.codes_set_missing(handle, f"scaleFactorOf{unused}Limit")
                    eccodes.codes_set_missing(handle, f"scaledValueOf{unused}Limit")
                if local:
                    eccodes.codes_set(handle, "marsType", MARS_TYPE[self.kind])
                found: bytes = eccodes.codes_get_message(handle)
                return found
        except eccodes.CodesInternalError as error:
            raise InputError(
                f"a message like those of the input cannot hold a {self.kind} ({error}); remove this product"
            ) from None


def fraction_of(level: float | None) -> tuple[int, int]:
    """Return k and n with level = k/n and the smallest n, as templates 4.89 and 4.90 store a quantile's level.

    >>> fraction_of(0.9)
    (9, 10)
    >>> fraction_of(0.025)
    (1, 40)
    """
    assert level is not None
    for n in range(1, MOST_QUANTILES + 1):
        if abs(k := round(level * n)) and k < n and abs(level * n - k) < 1e-9 * n:
            return k, n
    raise InputError(
        f"the quantile level {level} is no fraction k/n with n up to {MOST_QUANTILES}, which GRIB2 needs; choose a "
        "level such as 0.9 or 0.025"
    )


def scaled_limit(limit: float) -> tuple[int, int]:
    """Return scale factor f and whole number s with limit = s / 10^f.

    >>> scaled_limit(273.15)
    (2, 27315)
    >>> scaled_limit(0)
    (0, 0)
    """
    for factor in range(10):
        scaled = round(limit * 10**factor)
        if abs(scaled) >= 2**31 - 1:
            break
        if abs(scaled / 10**factor - limit) <= 1e-12 * abs(limit):
            return factor, scaled
    raise InputError(
        f"the threshold {limit} has more digits than GRIB2 can store; round it, for example to {limit:.4g}"
    )
