"""No error message advises what destroys or falsifies data: removing files, editing in place, relabelling units."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    r"\brm -|delete it|remove it and|repair or remove|remove (those|the) (forec|anal)": (
        "is not a complete NetCDF file; remove it and prepare it again"
    ),
    r"ncatted\b\S* -a units,\S*,[om],": 'correct its units with ncatted -a units,NAME,o,c,"K" IN OUT',
    r"(ncatted -a|grib_set -)(?!.*IN OUT)": "correct it, for instance with ecCodes' grib_set -s step=24",
    r"-s dataDate=": "grib_set -s dataDate=YYYYMMDD IN OUT",
}
"""Patterns, each with an advice of an earlier version that it finds."""


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


def test_no_message_advises_it():
    assert [pattern for pattern, advice in FORBIDDEN.items() if not re.search(pattern, advice, re.DOTALL)] == []
    assert [place for place, text in texts() if any(re.search(one, text, re.DOTALL) for one in FORBIDDEN)] == []
