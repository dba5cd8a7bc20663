"""Write the corrected forecasts of one data set in the format of the input, or in the other one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import grid_of_files
from data_pipeline.formats.system_files import SystemFiles
from data_pipeline.grids.points import Points
from models.corrected_files.input_files import FileType, type_of
from models.corrected_files.sidecar import WrittenFile, sidecar_path
from models.correction.pipeline import CorrectionPipelines


def write_outputs(
    pipelines: CorrectionPipelines,
    forecasts: Sequence[Path],
    outputs: Sequence[Path],
    output_type: FileType | None = None,
    names: Mapping[str, str] | None = None,
) -> tuple[list[WrittenFile], list[str], bool]:
    """Write `outputs`, one file for all `forecasts` or one for each; return them, notes, and whether they are copies.

    In the format of the input, outputs are copies. In another format, in Zarr, with `member_count`, with products
    alone, and at stations of forecasts on a grid, the first output gets the corrected fields of all inputs. GRIB of
    products alone keeps the headers of GRIB inputs. The default of `output_type` is the format of the input, and NetCDF
    for Zarr.
    """
    own = type_of(forecasts[0])
    wanted = output_type or ("netcdf" if own == "zarr" else own)
    options = pipelines[0].options
    if wanted == "grib" and any(one.kind == "cpf" for each in pipelines for one in each.products):
        raise InputError(
            "products: cpf has no code in GRIB, whose table of relations to a climate (4.101) has the extreme forecast "
            "index and the shift of tails only; write NetCDF or Zarr, or leave out cpf"
        )
    edited = own == wanted != "zarr" and options.member_count is None and not _moves(own, pipelines, forecasts, names)
    copied = edited and (own == "grib" or not options.only_products)
    if not copied and len(outputs) > 1:
        raise InputError(
            f"the corrected fields of {len(forecasts)} files that belong together are written to one new file; name a "
            "file as output"
        )
    if copied and own == "grib":
        from models.corrected_files.grib_output import write_grib

        return *write_grib(pipelines, forecasts, outputs, names), not options.only_products
    if isinstance(forecasts, SystemFiles) and wanted == "grib":
        raise InputError(
            f"{outputs[0]} would be a new GRIB file of several systems with the same numbers of members; write NetCDF"
        )
    if (template := options.template) != "same":
        raise InputError(
            f"template={template} is for GRIB files that are written as a copy of a GRIB input; leave it out for "
            f"{outputs[0]}"
        )
    if options.keys and wanted != "grib":
        raise InputError(f"keys are keys of GRIB messages; leave keys out for {outputs[0]}, or write GRIB")
    if wanted == "table" and options.products:
        raise InputError(f"{outputs[0]} would be a table, which holds members only; name a NetCDF file (.nc)")
    if wanted == "table" and not copied:
        raise InputError(f"{outputs[0]} would be a table of other members than the input; name a NetCDF file (.nc)")
    for output in outputs:
        sidecar_path(output).unlink(missing_ok=True)  # it describes the older file
    if copied:
        from models.corrected_files.netcdf_output import write_netcdf, write_tables

        write = write_tables if own == "table" else write_netcdf
        counts, notes = write(pipelines, forecasts, outputs, names)
        groups = [[path] for path in forecasts]
        files = zip(outputs, groups, counts, strict=True)
        return [WrittenFile.without_messages(*file) for file in files], notes, True
    if wanted in ("netcdf", "zarr"):
        from models.corrected_files.netcdf_output import write_new_netcdf

        count, notes = write_new_netcdf(pipelines, forecasts, outputs[0], wanted == "zarr")
    else:
        from models.corrected_files.new_grib import write_new_grib

        count, notes = write_new_grib(pipelines, forecasts, outputs[0])
    return [WrittenFile.without_messages(outputs[0], forecasts, count)], notes, False


def _moves(
    own: FileType, pipelines: CorrectionPipelines, forecasts: Sequence[Path], names: Mapping[str, str] | None
) -> bool:
    """Return whether corrected fields have another grid than the input, so that a copy cannot hold them.

    A copy in GRIB can: each message has a grid of its own, but no stations.
    """
    grids = [each.engine.description.grid for each in pipelines if each.engine.description.target_grid]
    if own == "grib":
        grids = [grid for grid in grids if isinstance(grid, Points)]
    return bool(grids) and not all(grid.matches(grid_of_files(forecasts, names)) for grid in grids)
