"""Write the corrected forecasts of one data set in the format of the input, or in the other one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from data_pipeline.common.errors import InputError
from models.corrected_files.input_files import FileType, type_of
from models.corrected_files.sidecar import WrittenFile, sidecar_path
from models.correction.pipeline import CorrectionPipelines


def write_outputs(
    pipelines: CorrectionPipelines,
    forecasts: Sequence[Path],
    outputs: Sequence[Path],
    output_type: FileType | None = None,
    names: Mapping[str, str] | None = None,
) -> tuple[list[WrittenFile], list[str]]:
    """Write `outputs`, one file for all `forecasts` or one for each; return them, and notes.

    In the format of the input, outputs are copies. In another format, in Zarr and with `member_count`, the first output
    gets the corrected fields of all inputs. The default of `output_type` is the format of the input, and NetCDF for
    Zarr.
    """
    own = type_of(forecasts[0])
    wanted = output_type or ("netcdf" if own == "zarr" else own)
    members = pipelines[0].options.member_count
    if members is not None and len(outputs) > 1:
        raise InputError(
            f"member_count={members} writes the corrected fields of {len(forecasts)} files that belong together to one "
            f"new file; name a file as output, or remove member_count"
        )
    copied = own == wanted != "zarr" and members is None
    if copied and own == "grib":
        from models.corrected_files.grib_output import write_grib

        return write_grib(pipelines, forecasts, outputs, names)
    if (template := pipelines[0].options.template) != "same":
        raise InputError(
            f"template={template} is for GRIB files that are written as a copy of a GRIB input; leave it out for "
            f"{outputs[0]}"
        )
    if pipelines[0].options.products:
        raise InputError(
            "products are written into copies of GRIB inputs only; leave out products, or write GRIB from GRIB for "
            f"{outputs[0]}"
        )
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
        return [WrittenFile.without_messages(*file) for file in files], notes
    if wanted in ("netcdf", "zarr"):
        from models.corrected_files.netcdf_output import write_new_netcdf

        count, notes = write_new_netcdf(pipelines, forecasts, outputs[0], wanted == "zarr")
    else:
        from models.corrected_files.new_grib import write_new_grib

        count, notes = write_new_grib(pipelines, forecasts, outputs[0])
    return [WrittenFile.without_messages(outputs[0], forecasts, count)], notes
