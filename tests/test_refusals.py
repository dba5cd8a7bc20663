"""No error message advises what destroys or falsifies data: removing files, editing in place, relabelling units."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "removes the user's data": r"\brm -|delete it|remove it and|repair or remove|remove (those|the) (forec|anal)",
    "relabels units that are there": r"ncatted\b\S* -a units,\S*,[om],",
    "changes a file in place": r"(ncatted -a|grib_set -)(?!.*IN OUT)",
    "makes up dates": r"-s dataDate=",
}


def texts():
    """Every string of the program and its place; the values inside f-strings are NAME."""
    for package in ("data_pipeline", "models", "training", "evaluation", "conf"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            nested = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "NAME" for part in node.values]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in nested:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_message_advises_it(what):
    assert [place for place, text in texts() if re.search(FORBIDDEN[what], text, re.DOTALL)] == []


@pytest.mark.parametrize(
    "text",
    [
        'convert it or correct its units, for instance with ncatted -a units,NAME,o,c,"K"',
        "repair or remove it, then run the same command again",
        "is not a complete NetCDF file; remove it and prepare it again",
        "correct it, for instance with ecCodes' grib_set -s dataDate=YYYYMMDD",
        "add these fields, or remove those forecasts from NAME",
        "remove the analysis there or this model from the comparison",
    ],
)
def test_the_advice_of_earlier_versions_is_found(text):
    assert any(re.search(pattern, text, re.DOTALL) for pattern in FORBIDDEN.values())
