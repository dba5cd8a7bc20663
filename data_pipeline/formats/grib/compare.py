"""In which keys two messages differ: why there are two fields for one place."""

from __future__ import annotations

import eccodes

PRODUCT = (
    "productDefinitionTemplateNumber", "typeOfStatisticalProcessing", "lengthOfTimeRange", "derivedForecast",
    "probabilityType", "scaledValueOfLowerLimit", "scaledValueOfUpperLimit", "percentileValue",
)  # fmt: skip
"""Keys of GRIB2 that no namespace holds, although what a field is depends on them."""


def difference(one: bytes, other: bytes) -> str:
    """Return the keys that tell two messages apart, with both values."""
    keys, others = _keys(one), _keys(other)
    differ = [
        f"{key} {keys.get(key)} and {others.get(key)}" for key in {**keys, **others} if keys.get(key) != others.get(key)
    ]
    return ", ".join(differ) or "their values only"


def _keys(message: bytes) -> dict[str, str]:
    """Return the keys that may tell two messages apart."""
    handle = eccodes.codes_new_from_message(message)
    keys = {}
    try:
        for name in PRODUCT:
            if eccodes.codes_is_defined(handle, name):
                keys[name] = eccodes.codes_get_string(handle, name)
        for namespace in ("ls", "mars"):
            iterator = eccodes.codes_keys_iterator_new(handle, namespace)
            while eccodes.codes_keys_iterator_next(iterator):
                name = eccodes.codes_keys_iterator_get_name(iterator)
                keys[name] = eccodes.codes_get_string(handle, name)
            eccodes.codes_keys_iterator_delete(iterator)
    finally:
        eccodes.codes_release(handle)
    return keys
