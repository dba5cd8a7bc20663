"""Product templates: headers for messages that hold a statistic of a corrected ensemble instead of a member."""

from __future__ import annotations

from dataclasses import dataclass

import eccodes

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.keys import opened
from data_pipeline.writing.encode import ORDER
from data_pipeline.writing.marks import POSTPROCESSED_TEMPLATES, postprocessed, template_of
from data_pipeline.writing.product import EXTREMES, OUTER_LEVELS, ClimateSample, Product

PRODUCT_TEMPLATES = {
    "mean": (199, 200), "spread": (199, 200), "quantile": (89, 90), "probability": (201, 202),
}  # fmt: skip
"""Templates of post-processed statistics: at one time, and over an interval (WMO Manual on Codes, FM 92)."""
REFERENCE_TEMPLATES = (130, 107)
"""Templates of statistics of all members in relation to a reference period, at one time and over an interval.

ECMWF writes both indices with template 4.107 and these keys; WMO has no post-processed form of either template.
"""
RELATION = {"efi": 20, "sot": 21}
"""WMO table 4.101; the crossing-point forecast has no code there."""
ANALYSES, LARGE_ANOMALY_INDEX, INDEX_PROCESSING, YEARS, DAYS = 0, 5, 102, 4, 2
"""WMO tables 4.100, 4.7, 4.10 and 4.4."""
INDEX_PARAMETERS = {"tp": "tpi", "sf": "sfi"}
"""ECMWF's parameters of indices over an interval that differ from the member's in more than the processing."""
MARS_TYPE = {"mean": "em", "spread": "es", "quantile": "pb", "probability": "ep", "efi": "efi", "sot": "sot"}
DERIVED_FORECAST = {"mean": 0, "spread": 4}
"""WMO table 4.7: unweighted mean, and spread, of all members."""
ABOVE_LOWER, BELOW_UPPER = 3, 4
"""WMO table 4.9, probability type."""
KeyValues = int | str | list[int] | None
"""The value of an ecCodes key; None is its missing value."""
MOST_QUANTILES = 1000
"""Levels are k/n with n up to this number: `quantileValue` k of `totalNumberOfQuantiles` n."""


@dataclass(frozen=True)
class StatisticHeader:
    """Headers of a product, whose threshold is in the units of the messages.

    Call the object with a member's message to give it the product's headers.
    """

    product: Product
    members: int
    climate: ClimateSample | None = None

    def __call__(self, message: bytes) -> bytes:
        """Return the message of a member with the headers of the statistic; the values are still the member's.

        GRIB1 has headers for mean and spread only, as ECMWF's types `em` and `es`.
        """
        kind = self.product.kind
        if message[7] == 1:
            if kind not in DERIVED_FORECAST:
                raise InputError(
                    f"GRIB1 has no header for {self._named}, and the input is GRIB1; convert it with ecCodes' "
                    "grib_set -s edition=2 IN OUT, or remove this product"
                )
            return self._with(message, {"perturbationNumber": 0})
        if kind in EXTREMES:
            return self._with(message, self._reference_keys(message))
        message = postprocessed(message)
        over_time = template_of(message) in (72, 73)
        keys: dict[str, KeyValues] = {"productDefinitionTemplateNumber": PRODUCT_TEMPLATES[kind][over_time]}
        if kind in DERIVED_FORECAST:
            keys |= {"derivedForecast": DERIVED_FORECAST[kind], "numberOfForecastsInEnsemble": self.members}
        elif kind == "quantile":
            keys |= dict(zip(("quantileValue", "totalNumberOfQuantiles"), fraction_of(self.product.level), strict=True))
        else:
            event = self.product.threshold
            assert event is not None
            factor, scaled = scaled_limit(event.value)
            side, code, unused = ("Lower", ABOVE_LOWER, "Upper") if event.above else ("Upper", BELOW_UPPER, "Lower")
            keys |= {"numberOfForecastsInEnsemble": self.members, "probabilityType": code}
            keys |= {"forecastProbabilityNumber": 0, "totalNumberOfForecastProbabilities": 1}
            keys |= {f"scaleFactorOf{side}Limit": factor, f"scaledValueOf{side}Limit": scaled}
            keys |= {f"scaleFactorOf{unused}Limit": None, f"scaledValueOf{unused}Limit": None}
        return self._with(message, keys)

    def _reference_keys(self, message: bytes) -> dict[str, KeyValues]:
        """Return the keys of a comparison with the climate."""
        assert self.climate is not None
        template = template_of(message)
        if template not in (*POSTPROCESSED_TEMPLATES, *POSTPROCESSED_TEMPLATES.values()):
            raise InputError(
                f"the input has messages with product definition template 4.{template}, for which WMO has no "
                f"comparison with a climate; leave {self.product.text} out of products"
            )
        over_time, first = template in (8, 11, 72, 73), self.climate.first.astype("datetime64[s]").item()
        keys: dict[str, KeyValues] = {
            "productDefinitionTemplateNumber": REFERENCE_TEMPLATES[over_time],
            "numberOfForecastsInEnsemble": self.members, "derivedForecast": LARGE_ANOMALY_INDEX,
            "typeOfReferenceDataset": ANALYSES, "typeOfRelationToReferenceDataset": RELATION[self.product.kind],
        }  # fmt: skip
        if self.product.level is not None:
            percentiles = [round(100 * level) for level in (self.product.level, OUTER_LEVELS[self.product.level])]
            keys |= {"numberOfAdditionalParametersForReferencePeriod": 2}
            keys |= {"scaleFactorOfAdditionalParameterForReferencePeriod": [0, 0]}
            keys |= {"scaledValueOfAdditionalParameterForReferencePeriod": percentiles}
        keys |= {
            f"{part}OfStartOfReferencePeriod": getattr(first, part)
            for part in ("year", "month", "day", "hour", "minute", "second")
        }
        keys |= {"sampleSizeOfReferencePeriod": self.climate.size, "numberOfReferencePeriodTimeRanges": 2}
        keys |= {"indicatorOfUnitForTimeRangeForReferencePeriod": [YEARS, DAYS]}
        keys |= {"lengthOfTimeRangeForReferencePeriod": [self.climate.years, self.climate.days]}
        return keys | (_index_keys(message) if over_time else {})

    @property
    def _named(self) -> str:
        return f"the {EXTREMES[kind]}" if (kind := self.product.kind) in EXTREMES else f"a {kind}"

    def _with(self, message: bytes, keys: dict[str, KeyValues]) -> bytes:
        try:
            with opened(message) as handle:
                local = eccodes.codes_is_defined(handle, "marsType")
                if message[7] == 1 and not local:
                    raise InputError(
                        f"GRIB1 of this centre has no header for an ensemble {self.product.kind}; convert the input "
                        "with ecCodes' grib_set -s edition=2 IN OUT, or remove this product"
                    )
                for name in sorted(keys, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
                    if keys[name] is None:
                        eccodes.codes_set_missing(handle, name)
                    else:
                        put = eccodes.codes_set_array if isinstance(keys[name], list) else eccodes.codes_set
                        put(handle, name, keys[name])
                if local:
                    eccodes.codes_set(handle, "marsType", MARS_TYPE[self.product.kind])
                found: bytes = eccodes.codes_get_message(handle)
                return found
        except eccodes.CodesInternalError as error:
            raise InputError(
                f"a message like those of the input cannot hold {self._named} ({error}); remove this product"
            ) from None


def _index_keys(message: bytes) -> dict[str, KeyValues]:
    """Return the keys that say that a message over an interval holds an index, and ECMWF's parameter of it."""
    with opened(message) as handle:
        if eccodes.codes_get(handle, "numberOfTimeRanges") != 1:
            return {}
        names = "typeOfStatisticalProcessing", "lengthOfTimeRange", "indicatorOfUnitForTimeRange"
        processing, length, unit = (eccodes.codes_get(handle, name, int) for name in names)
        index = INDEX_PARAMETERS.get(eccodes.codes_get(handle, "shortName"))
        index = index if eccodes.codes_get(handle, "centre") == "ecmf" else None
    keys: dict[str, KeyValues] = {"numberOfTimeRanges": 2}
    keys |= {"typeOfStatisticalProcessing": [INDEX_PROCESSING, processing]}
    keys |= {"indicatorOfUnitForTimeRange": [unit, unit], "lengthOfTimeRange": [length, length]}
    return keys | ({"shortName": index} if index else {})


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
