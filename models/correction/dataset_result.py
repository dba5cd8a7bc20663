"""The result of `correct_dataset` with the names, dimensions, units and order of the user's dataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import reduce
from typing import Any

import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.sources.array_fields import StandardDataset
from data_pipeline.task import Task, Variable
from data_pipeline.writing.product import Product, ProductVariable


def in_place(dataset: xr.Dataset, forecasts: StandardDataset, corrected: Mapping[Variable, xr.DataArray]) -> xr.Dataset:
    """Return the user's dataset with the corrected fields at their lead times and levels."""
    result = dataset.copy()
    leads = forecasts.dataset.lead_time.values.tolist()
    levels = forecasts.dataset.level.values.tolist() if "level" in forecasts.own_names else []
    for target, array in corrected.items():
        own = result[name := forecasts.own_name(target)]
        at = [leads.index(lead) for lead in array.lead_time.values.tolist()]
        place = {forecasts.own_names["lead_time"]: at} if len(at) < len(leads) else {}
        made = forecasts.conversion(target).inverse.apply(array.drop_vars(list(array.coords)))
        if forecasts.flipped:
            made = made.isel(latitude=slice(None, None, -1))
        made = made.rename({role: given for role, given in forecasts.own_names.items() if role in made.dims})
        if target.level:
            made = made.expand_dims({(level := forecasts.own_names["level"]): 1})
            place[level] = [levels.index(target.level)]
        made = made.transpose(*own.dims)
        bare = own.drop_vars(list(own.coords))
        result[name] = own.copy(data=_placed(bare, made, place).data)
    return result


def corrected_alone(
    dataset: xr.Dataset, forecasts: StandardDataset, corrected: Mapping[Variable, xr.DataArray]
) -> xr.Dataset:
    """Return the corrected fields, with the names of dimensions and the order of latitudes of the user's dataset."""
    result = xr.Dataset(attrs=dataset.attrs)
    for target, array in corrected.items():
        name = forecasts.own_name(target)
        made = _of_user(forecasts.conversion(target).inverse.apply(array), target, dataset, forecasts)
        made = made.transpose(*dataset[name].dims).assign_attrs(dataset[name].attrs).rename(name)
        result = xr.merge([result, made], combine_attrs="override", join="outer", compat="no_conflicts")
    return result


def with_products(
    result: xr.Dataset,
    dataset: xr.Dataset,
    forecasts: StandardDataset,
    task: Task,
    products: Sequence[Product],
    found: Mapping[Any, xr.DataArray],
) -> xr.Dataset:
    """Return a result with the products in variables such as `2t_mean`, in the units of the user's dataset."""
    wanted: dict[str, list[tuple[Product, xr.DataArray]]] = defaultdict(list)
    for product in products:
        target = task.targets[product.target]
        stored, made = product.stored(found[product], 1.0, forecasts.conversion(target))
        made = _of_user(made.astype(found[product].dtype), target, dataset, forecasts)
        wanted[forecasts.own_name(target)].append((stored, made))
    for name, own in wanted.items():
        about = dataset[name].attrs
        for suffix, one in ProductVariable.of(name, [product for product, _ in own]).items():
            if one.name in dataset.variables:
                raise InputError(f"the dataset has {one.name} already; rename it, or leave out products")
            parts = [
                made.expand_dims({one.axis: [product.place]}) if one.axis else made
                for product, made in own
                if product.suffix == suffix
            ]
            whole = reduce(xr.DataArray.combine_first, parts)
            whole = whole.reindex({role: result.indexes[role] for role in whole.dims if role in result.indexes})
            result = result.assign({one.name: whole.drop_attrs().assign_attrs(one.attributes(about))})
            if one.axis:
                result[one.axis].attrs = one.axis_attributes(about)
    return result


def _of_user(array: xr.DataArray, target: Variable, dataset: xr.Dataset, forecasts: StandardDataset) -> xr.DataArray:
    """Return a field of a target with the names and coordinates of dimensions of the user's dataset, and its levels."""
    leads, name = forecasts.dataset.lead_time.values.tolist(), forecasts.own_names["lead_time"]
    made = array.isel(latitude=slice(None, None, -1)) if forecasts.flipped else array
    made = made.expand_dims(level=[target.level]) if target.level else made
    own = dataset[name].values[[leads.index(lead) for lead in made.lead_time.values.tolist()]]
    made = made.assign_coords(lead_time=("lead_time", own, dataset[name].attrs))
    return made.rename({role: given for role, given in forecasts.own_names.items() if role in made.dims})


def _placed(own: xr.DataArray, made: xr.DataArray, place: Mapping[Hashable, Sequence[int]]) -> xr.DataArray:
    """Return `own` with the values of `made` at the positions `place` of some dimensions, without coordinates."""
    if not place:
        return made
    (name, positions), *others = place.items()
    parts = [
        _placed(own.isel({name: [k]}), made.isel({name: [positions.index(k)]}), dict(others)) if k in positions
        else own.isel({name: [k]})
        for k in range(own.sizes[name])
    ]  # fmt: skip
    return xr.concat(parts, name)
