"""A tiny twin, and the messages of its files."""

import eccodes

TWIN = ["data.generator.first_year=2010", "data.generator.dates=8", "data.generator.members=5"]
SPLIT = ["data.split.train=[2010,2014]", "data.split.val=[2015,2015]"]
QUICK = ["trainer.epochs=2", "model.width=4"]
FORECAST = "data/twin/output.sfc.20180108"


def messages(path):
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield handle
            eccodes.codes_release(handle)


def keys(handle):
    iterator = eccodes.codes_keys_iterator_new(handle, "ls")
    found = {}
    while eccodes.codes_keys_iterator_next(iterator):
        name = eccodes.codes_keys_iterator_get_name(iterator)
        found[name] = eccodes.codes_get_string(handle, name)
    eccodes.codes_keys_iterator_delete(iterator)
    return found
