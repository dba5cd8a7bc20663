"""Members of GRIB messages for tests of marks and templates, and keys read by ecCodes."""

import eccodes
import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.writing import Encoder

GRID = Grid.regular(5, 8)
ECMWF = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "od", "type": "pf",
    "stream": "enfo", "expver": "0001",
}  # fmt: skip
MEMBER = {"numberOfForecastsInEnsemble": 51, "perturbationNumber": 7, "generatingProcessIdentifier": 152}


def message(template, edition=2, **keys):
    """A message of 2t, or of tp over 24 hours, in a product definition template."""
    over_time = template in (8, 11)
    times = {"stepType": "accum", "startStep": 24, "endStep": 48} if over_time else {"step": 48}
    member = MEMBER if template in (1, 11) or edition == 1 else {"generatingProcessIdentifier": 152}
    number = {"productDefinitionTemplateNumber": template} if edition == 2 else {}
    name = "tp" if over_time else "2t"
    encoder = Encoder(GRID, edition=edition, **keys)
    return encoder.encode(
        np.random.default_rng(0).normal(280, 5, GRID.shape), **number, **member, typeOfLevel="surface", level=0,
        shortName=name, dataDate=20200101, **times,
    )  # fmt: skip


def keys_of(message, *names):
    handle = eccodes.codes_new_from_message(message)
    found = [eccodes.codes_get_string(handle, name) for name in names]
    eccodes.codes_release(handle)
    return found
