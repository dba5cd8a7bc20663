"""Marks: header keys that distinguish a corrected message from a raw one.

Marks are set in the bytes of a message, because ecCodes would pack the values again. Once for each kind of message,
`HeaderMarks` checks with ecCodes that all keys that identify a field are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import eccodes

from data_pipeline.common.checks import check_boolean, check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.headers import GRIB1_BITMAP, GRIB1_GRID
from data_pipeline.formats.grib.keys import get_text, opened
from data_pipeline.writing.encode import rank_of_key

TEMPLATES = ("same", "postprocessed")
POSTPROCESSED_TEMPLATES = {0: 70, 1: 71, 8: 72, 11: 73}
"""WMO product definition templates of post-processed forecasts, by the template of the raw forecast."""
POSTPROCESSED_STATISTICS = (89, 90, 199, 200, 201, 202)
"""WMO product definition templates of statistics of post-processed forecasts, with the same octets before octet 17."""
ENSEMBLE = (1, 11, 71, 73)
BIAS_CORRECTED, BIAS_CORRECTED_ENSEMBLE, POST_PROCESSED = 3, 11, 13
"""Codes of WMO table 4.3, type of generating process."""
NO_PROCESS, LAST_PROCESS = 255, 254
"""Identifiers of a generating process; 255 is WMO's missing value."""
IDENTITY = (
    "paramId", "dataType", "centre", "subCentre", "dataDate", "dataTime", "stepRange", "stepType", "typeOfLevel",
    "level", "number", "numberOfForecastsInEnsemble", "expver", "stream", "class", "gridType", "numberOfPoints",
)  # fmt: skip
"""Keys by which cfgrib, MARS and `grib_ls` find and name fields."""
CONTENT = (
    "edition", "paramId", "units", "dataType", "dataDate", "dataTime", "stepRange", "stepType", "typeOfLevel", "level",
    "number", "numberOfForecastsInEnsemble", "productDefinitionTemplateNumber", "derivedForecast", "quantileValue",
    "totalNumberOfQuantiles", "probabilityType", "lowerLimit", "upperLimit",
)  # fmt: skip
"""Keys that say which field a message holds, beside its grid and its values."""
CHANGING = ("dataDate", "dataTime", "stepRange", "number")
"""Those in which messages of one kind differ; ecCodes takes a millisecond for a key."""
ALIASES = (
    "shortName", "name", "param", "parameterCategory", "parameterNumber", "indicatorOfParameter", "discipline",
    "date", "time", "step", "startStep", "endStep", "forecastTime", "indicatorOfUnitOfTimeRange", "stepUnits",
    "validityDate", "validityTime", "year", "month", "day", "hour", "minute", "second", "type", "marsType",
    "levtype", "levelist", "perturbationNumber", "typeOfEnsembleForecast", "grid", "gridType", "Ni", "Nj", "values",
    "packingType", "bitsPerValue", "decimalPrecision", "decimalScaleFactor", "bitmapPresent", "missingValue",
)  # fmt: skip
"""Further names of such keys, of the grid and of the values. `with_keys` also finds names that are not in this list."""
KeyValue = str | int | float


class SectionError(ValueError):
    """A message lacks a section, or states wrong lengths of its sections; the error's text says which."""


class HeaderMarks:
    """Changes the headers of corrected messages, by the options `template`, `mark` and `keys` of `correct`."""

    def __init__(self, template: str = "same", mark: bool = True, keys: Mapping[str, KeyValue] | None = None) -> None:
        check_choice("template", template, TEMPLATES)
        check_boolean("mark", mark)
        self._postprocessed, self._mark, self._keys = template == "postprocessed", mark, check_keys(keys or {})
        self._checked: set[Hashable] = set()
        self._keyed: set[Hashable] = set()

    def __call__(self, message: bytes) -> bytes:
        """Return the message, which holds one field, with the headers of a corrected message.

        Raises `InputError` if there is no post-processed template for it, or if ecCodes would then read another field.
        """
        new = postprocessed(message) if self._postprocessed else message
        new = marked(new) if self._mark else new
        if new is not message:
            kind = _kind(message)
            if kind not in self._checked:
                _check_identity(message, new)
                self._checked.add(kind)
        return self._with_keys(new, None)

    def of_product(self, header: Callable[[bytes], bytes], message: bytes) -> bytes:
        """Return the message of a member with the `header` of a product, and the marks and keys of a corrected one."""
        new = header(message)
        return self._with_keys(marked(new) if self._mark else new, header)

    def _with_keys(self, message: bytes, header: Hashable) -> bytes:
        """Return the message with the option `keys`, which are compared in full once for each kind of message."""
        if not self._keys:
            return message
        kind = _kind(message), header
        new = with_keys(message, self._keys, CHANGING if kind in self._keyed else CONTENT)
        self._keyed.add(kind)
        return new


def check_keys(keys: object) -> Mapping[str, KeyValue]:
    """Return the option `keys`; raise `InputError` unless it maps names of ecCodes keys to texts and numbers."""
    if not isinstance(keys, Mapping):
        raise InputError(f"keys must map ecCodes keys to values, such as {{expver: '0079'}}, got {keys!r}")
    for name, value in keys.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, KeyValue):
            raise InputError(f"keys: {name!r} has {value!r}; name a key of ecCodes and give it a text or a number")
        if name in (*CONTENT, *ALIASES):
            raise InputError(
                f"keys: {name} says which field a message holds, and the corrected field is another one than "
                f"{name}={value!r} says; leave it out"
            )
    return keys


def with_keys(message: bytes, keys: Mapping[str, KeyValue], content: Sequence[str] = CONTENT) -> bytes:
    """Return a message with other values of ecCodes keys.

    Raises `InputError` for a key or a value that ecCodes does not have in this message, and for one that changes which
    field the message holds: the keys `content`, the grid, the values and their packing.
    """
    with opened(message) as handle:
        for name in sorted(keys, key=rank_of_key):
            value = keys[name]
            try:
                eccodes.codes_set(handle, name, value)
                found = eccodes.codes_get(handle, name, type(value))
            except eccodes.CodesInternalError as error:
                raise InputError(
                    f"keys: ecCodes cannot set {name}={value!r} in a message like those of the output ({error}); "
                    "correct the key, or leave it out"
                ) from None
            if found != value:
                raise InputError(
                    f"keys: ecCodes reads {name}={found!r} where {name}={value!r} was set; write the value as grib_ls "
                    "prints it, such as '0079' for an expver"
                )
        new: bytes = eccodes.codes_get_message(handle)
    before, after = _content(message, content), _content(new, content)
    if changed := [key for key in before if before[key] != after[key]]:
        for name in keys if len(keys) > 1 else ():
            with_keys(message, {name: keys[name]}, content)  # raises for the key that changes the field
        raise InputError(
            f"keys: {', '.join(f'{name}={value!r}' for name, value in keys.items())} changes {changed[0]} of a "
            "corrected message, which then holds another field than it says; leave it out"
        )
    return new


def _content(message: bytes, keys: Sequence[str]) -> dict[str, object]:
    """Return what a message says about its field: `keys`, and the bytes of its grid, bitmap, packing and values."""
    starts, width = section_starts(message), 3 if message[7] == 1 else 4
    found: dict[str, object] = {}
    for number in (2, 3, 4) if message[7] == 1 else (3, 5, 6, 7):
        if at := starts.get(number):
            found[f"section {number}"] = message[at : at + int.from_bytes(message[at : at + width], "big")]
    with opened(message) as handle:
        return found | {key: get_text(handle, key) for key in keys}


def marked(message: bytes) -> bytes:
    """Return the message with another generating process than the raw forecast.

    `generatingProcessIdentifier` becomes 255, or 254 if it is 255. In GRIB2, `typeOfGeneratingProcess` becomes
    bias-corrected (ensemble) forecast, or post-processed forecast in the templates of post-processed forecasts.
    """
    new = bytearray(message)
    if message[7] == 1:
        at = 8 + 5
    else:
        section = section_starts(message)[4]
        template = template_of(message)
        late = template in (*POSTPROCESSED_TEMPLATES.values(), *POSTPROCESSED_STATISTICS)
        kind = section + (16 if late else 11)
        new[kind] = POST_PROCESSED if late else BIAS_CORRECTED_ENSEMBLE if template in ENSEMBLE else BIAS_CORRECTED
        at = kind + 2
    new[at] = LAST_PROCESS if message[at] == NO_PROCESS else NO_PROCESS
    return bytes(new)


def postprocessed(message: bytes) -> bytes:
    """Return a GRIB2 message with the template of a post-processed forecast: 4.70, .71, .72 or .73.

    These templates have five more octets before octet 12. `inputProcessIdentifier` and `inputOriginatingCentre` are set
    to the raw message's, `typeOfPostProcessing` to 255 (missing), because each centre numbers its own techniques.
    """
    if message[7] == 1:
        raise InputError(
            "template=postprocessed needs GRIB2, and the input has GRIB1 messages, which have no such template; "
            "convert the input with ecCodes' grib_set -s edition=2 IN OUT, or set template=same"
        )
    template, section = template_of(message), section_starts(message)[4]
    if template in POSTPROCESSED_TEMPLATES.values():
        return message
    if template not in POSTPROCESSED_TEMPLATES:
        raise InputError(
            f"the input has messages with product definition template 4.{template}, for which WMO has no "
            "post-processed template; set template=same"
        )
    identifier, centre = message[section + 13], message[16 + 5 : 16 + 7]
    length = int.from_bytes(message[section : section + 4], "big") + 5
    return b"".join(
        (
            message[:8], (len(message) + 5).to_bytes(8, "big"), message[16:section], length.to_bytes(4, "big"),
            message[section + 4 : section + 7], POSTPROCESSED_TEMPLATES[template].to_bytes(2, "big"),
            message[section + 9 : section + 11], identifier.to_bytes(2, "big"), centre, b"\xff",
            message[section + 11 :],
        )
    )  # fmt: skip


def section_starts(message: bytes) -> dict[int, int]:
    """Return the position of each section of a message with one field, by its number; section 0 is left out."""
    sections: dict[int, int] = {}
    if message[7] == 1:
        at = 8
        present = {1: True, 2: message[15] & GRIB1_GRID, 3: message[15] & GRIB1_BITMAP, 4: True}
        for number in (number for number, there in present.items() if there):
            sections[number] = at
            at += int.from_bytes(message[at : at + 3], "big")
        if at > len(message):
            raise SectionError("has sections that are longer than the message")
        return sections
    at = 16
    while at + 5 <= len(message) - 4 and (length := int.from_bytes(message[at : at + 4], "big")) >= 5:
        sections[message[at + 4]] = at
        at += length
    if absent := {1, 3, 4, 5, 6, 7} - sections.keys():
        raise SectionError(f"has no section {min(absent)}")
    return sections


def template_of(message: bytes) -> int:
    """Return the product definition template number of a GRIB2 message."""
    section = section_starts(message)[4]
    return int.from_bytes(message[section + 7 : section + 9], "big")


def _kind(message: bytes) -> Hashable:
    """Return the bytes that messages of one parameter, centre, level and template share."""
    if message[7] == 1:
        return message[8 + 3 : 8 + 12]
    section = section_starts(message)[4]
    return message[6], message[16:25], message[section + 7 : section + 14], message[section + 22 : section + 34]


def _check_identity(old: bytes, new: bytes) -> None:
    before, after = _identity(old), _identity(new)
    if changed := [key for key in IDENTITY if before[key] != after[key]]:
        key = changed[0]
        raise InputError(
            f"corrected messages of paramId {before['paramId']} cannot be marked: ecCodes would read {key} "
            f"{after[key]} instead of {before[key]}; set mark=false and template=same"
        )


def _identity(message: bytes) -> dict[str, str]:
    with opened(message) as handle:
        found = {}
        for key in IDENTITY:
            try:
                found[key] = eccodes.codes_get_string(handle, key)
            except eccodes.CodesInternalError:
                found[key] = ""
        return found
