"""The layout of the project: which folder may import which others, read from the imports of every file."""

import ast
import functools
import re
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_pipeline", "models", "training", "evaluation", "conf")
DATA, COMMON, REGRIDDING = "data_pipeline", "data_pipeline/common", "data_pipeline/regridding"
GRIDS, VARIABLES = "data_pipeline/grids", "data_pipeline/variables"
READ, SAMPLES = "data_pipeline/sources", "data_pipeline/samples"
SCORING, FORECASTERS, TABLES = "evaluation/scoring", "evaluation/forecasters", "evaluation/tables"
FORMATS, CF = "data_pipeline/formats", "data_pipeline/formats/cf"
GRIB, NETCDF = "data_pipeline/formats/grib", "data_pipeline/formats/netcdf"
ZARR, TABLE = "data_pipeline/formats/zarr", "data_pipeline/formats/table"
FORMULAS = "data_pipeline/formulas"
PREFETCH, STATISTICS, STORE = "data_pipeline/prefetch", "data_pipeline/statistics", "data_pipeline/store"
SYNTHETIC, TWIN = "data_pipeline/synthetic", "data_pipeline/synthetic/twin"
MODELS, DISTRIBUTION, PARALLEL, LAYERS = "models", "models/distribution", "models/parallel", "models/layers"
GPU_KERNELS = "models/layers/kernels"
STATISTICAL, NETWORKS, PROVENANCE = "models/statistical", "models/networks", "models/provenance"
PUBLISHED, AVERAGES = "models/published", "models/averages"
ENGINES, MEMBERS = "models/engines", "models/members"
CORRECTION, CORRECTED_FILES = "models/correction", "models/corrected_files"
WRITING = "data_pipeline/writing"
JOBS = "conf/jobs"
EVALUATION, REPORT, SCORES = "evaluation", "evaluation/report", "evaluation/scores"
EXPLANATION, EVALUATION_RUN = "evaluation/explanation", "evaluation/run"
SIGNIFICANCE, KERNELS, MONITORING = "evaluation/significance", "evaluation/kernels", "evaluation/monitoring"
TRAINING, OPTIMIZATION, RUN = "training", "training/optimization", "training/run"
STEP, MEMORY = "training/step", "training/memory"
SHARED = {DATA, COMMON, GRIDS, VARIABLES}
"""Shared types."""
MAY_IMPORT = {
    COMMON: set(),
    # Its files hold shared types (grid, task, sample, protocols), the archive and the verb `prepare`.
    DATA: {COMMON, GRIDS, SAMPLES, VARIABLES, REGRIDDING, FORMULAS, FORMATS, PREFETCH},
    GRIDS: SHARED,
    SAMPLES: {*SHARED, FORMULAS, REGRIDDING},
    READ: {*SHARED, SAMPLES, REGRIDDING, FORMATS, CF, GRIB},
    VARIABLES: {*SHARED, FORMULAS},
    REGRIDDING: SHARED,
    FORMULAS: SHARED,
    FORMATS: {*SHARED, REGRIDDING, CF, GRIB, NETCDF, ZARR, TABLE},
    CF: {*SHARED, FORMATS},
    GRIB: {*SHARED, SAMPLES, FORMATS},
    NETCDF: {*SHARED, FORMATS, CF},
    ZARR: {*SHARED, FORMATS, CF, GRIB},
    TABLE: {*SHARED, FORMATS, CF, NETCDF},
    PREFETCH: {*SHARED, SAMPLES},
    STATISTICS: {*SHARED, SAMPLES, READ},
    STORE: {*SHARED, SAMPLES, FORMULAS, FORMATS},
    SYNTHETIC: SHARED,
    WRITING: {*SHARED, REGRIDDING, FORMATS, CF, GRIB, NETCDF, ZARR},
    TWIN: {*SHARED, FORMATS, WRITING},
    DISTRIBUTION: {COMMON},
    PARALLEL: SHARED,
    GPU_KERNELS: {COMMON},
    LAYERS: {*SHARED, PARALLEL, GPU_KERNELS},
    JOBS: {COMMON},
    STATISTICAL: {*SHARED, DISTRIBUTION, PARALLEL},
    NETWORKS: {*SHARED, DISTRIBUTION, PARALLEL, LAYERS, STATISTICAL, MODELS},
    PUBLISHED: {*SHARED, DISTRIBUTION, PARALLEL, LAYERS, STATISTICAL, NETWORKS},
    PROVENANCE: {COMMON, DATA, READ, PARALLEL},
    MODELS: {*SHARED, SAMPLES, REGRIDDING, FORMATS, STATISTICS, DISTRIBUTION, PARALLEL, STATISTICAL, PROVENANCE},
    AVERAGES: {*SHARED, DISTRIBUTION, PARALLEL, STATISTICAL, PROVENANCE, MODELS},
    ENGINES: {*SHARED, SAMPLES, REGRIDDING, DISTRIBUTION, PARALLEL, PROVENANCE, MODELS},
    MEMBERS: {*SHARED, FORMATS, STATISTICS, WRITING, DISTRIBUTION, PARALLEL, PROVENANCE, ENGINES},
    CORRECTION: {*SHARED, SAMPLES, READ, WRITING, PARALLEL, PROVENANCE, MODELS, ENGINES, MEMBERS},
    CORRECTED_FILES: {
        *SHARED,
        SAMPLES,
        REGRIDDING,
        FORMATS,
        GRIB,
        TABLE,
        WRITING,
        PARALLEL,
        PROVENANCE,
        ENGINES,
        MEMBERS,
        CORRECTION,
    },
    OPTIMIZATION: {*SHARED, STATISTICS, DISTRIBUTION, PARALLEL, STATISTICAL, PROVENANCE, MODELS},
    RUN: {*SHARED, STATISTICS, PARALLEL, STATISTICAL, PROVENANCE, MODELS, OPTIMIZATION},
    STEP: {*SHARED, PREFETCH, DISTRIBUTION, PARALLEL, LAYERS, PROVENANCE, MODELS, OPTIMIZATION, RUN},
    MEMORY: {*SHARED, PARALLEL, LAYERS, RUN, STEP},
    TRAINING: {
        *SHARED,
        *(SAMPLES, READ, PREFETCH, STATISTICS, SYNTHETIC, DISTRIBUTION, PARALLEL),
        *(LAYERS, STATISTICAL, PUBLISHED, PROVENANCE, MEMBERS, MODELS, AVERAGES, OPTIMIZATION, RUN, STEP, MEMORY),
    },
    FORECASTERS: {*SHARED, READ, DISTRIBUTION, PARALLEL, STATISTICAL, PROVENANCE, MODELS, SCORING},
    SCORING: {
        *SHARED,
        *(
            PREFETCH,
            STATISTICS,
            DISTRIBUTION,
            PARALLEL,
            STATISTICAL,
            MODELS,
            MEMBERS,
            PROVENANCE,
            SCORES,
            KERNELS,
            GPU_KERNELS,
        ),
    },
    TABLES: {*SHARED, SCORING, SCORES, SIGNIFICANCE},
    EVALUATION: {
        *SHARED,
        *(READ, DISTRIBUTION, PARALLEL, PROVENANCE, MODELS, MEMBERS, SCORING, TABLES, SIGNIFICANCE),
    },
    EVALUATION_RUN: {
        *SHARED,
        *(READ, STORE, DISTRIBUTION, PARALLEL, LAYERS, PROVENANCE, MODELS, MEMBERS),
        *(EVALUATION, FORECASTERS, SCORING, TABLES, REPORT, SIGNIFICANCE),
    },
    REPORT: {*SHARED, READ, DISTRIBUTION, SCORING, TABLES, SIGNIFICANCE, EVALUATION},
    EXPLANATION: {*SHARED, PROVENANCE, ENGINES, CORRECTION, EVALUATION, EVALUATION_RUN, REPORT},
    SCORES: {*SHARED, STATISTICS, DISTRIBUTION, PARALLEL, KERNELS, GPU_KERNELS},
    KERNELS: {COMMON},
    SIGNIFICANCE: {COMMON, SCORING},
    MONITORING: {*SHARED, REGRIDDING, FORMATS, MEMBERS, CORRECTED_FILES, REPORT},
    "conf": {COMMON, PARALLEL, JOBS},
}
"""Every folder may import itself and these. Verbs are the edge: they may import all, and nothing imports a verb."""
DOORS = {("models/corrector.py", ENGINES), ("models/corrector.py", CORRECTION)}
"""`Corrector.correct` is a part of the Python interface: what it calls is above it."""
VERBS = {
    "data_pipeline/prepare.py",
    "models/combine.py",
    "models/correct.py",
    "models/export.py",
    "conf/submit.py",
    "training/train.py",
    "evaluation/compare.py",
    "evaluation/evaluate.py",
    "evaluation/monitor.py",
}
SOURCES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PROGRAM = [
    *SOURCES,
    *(path.relative_to(ROOT) for name in ("benchmarks", "scripts") for path in (ROOT / name).rglob("*.py")),
]


def imports(path):
    """The dotted names of all modules, and of all names in modules, that a file imports."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def source_of(name):
    """The file of this project that an imported name comes from, None for other packages."""
    for dotted in (name, name.rpartition(".")[0]):
        path = ROOT / dotted.replace(".", "/")
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if name.partition(".")[0] in PACKAGES and found.is_file():
                return found.relative_to(ROOT)
    return None


@functools.cache
def all_imports():
    """What each file imports. Not computed at the import of this file, which every worker of pytest-xdist does."""
    return {path: list(imports(path)) for path in SOURCES}


@functools.cache
def own_imports():
    """The imports of files of this project: the file, the imported name and the file that it comes from."""
    return [
        (path, name, source) for path, names in all_imports().items() for name in names if (source := source_of(name))
    ]


def test_every_folder_is_in_the_table():
    assert {str(path.parent) for path in SOURCES} == set(MAY_IMPORT)


def test_the_first_folder_of_a_package_is_read_at_a_glance():
    files = [path for path in SOURCES if len(path.parts) == 2 and path.name != "__init__.py"]
    counts = Counter(path.parts[0] for path in files)
    assert {package: count for package, count in counts.items() if count > 15} == {}


def test_folders_import_only_the_folders_below_them():
    offenders = []
    for path, name, source in own_imports():
        folder, other = str(path.parent), str(source.parent)
        allowed = set(MAY_IMPORT) if str(path) in VERBS else MAY_IMPORT[folder] | {folder}
        if (other not in allowed and (str(path), other) not in DOORS) or str(source) in VERBS:
            offenders.append(f"{path} imports {name}")
    assert offenders == []


def test_folders_have_no_circular_imports():
    """Files of `data_pipeline` are shared types beside its folders, which read each other."""
    below = {folder: set() for folder in MAY_IMPORT if not folder.startswith(DATA)}
    for path, _, source in own_imports():
        folder, other = str(path.parent), str(source.parent)
        if folder in below and str(path) not in VERBS and (str(path), other) not in DOORS:
            below[folder] |= {other} & below.keys() - {folder}
    assert circle_of(below) == {}


def circle_of(below):
    """What remains when everything is taken away, again and again, that needs nothing of the rest."""
    while free := {one for one, others in below.items() if not others}:
        below = {one: others - free for one, others in below.items() if one not in free}
    return below


def test_files_have_no_circular_imports():
    """Only imports at the top of a file count: with a circle, success depends on which file is imported first."""
    below = {path: set() for path in SOURCES}
    for path in SOURCES:
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.ImportFrom):
                found = {source_of(f"{node.module}.{alias.name}") for alias in node.names}
                below[path] |= found - {None, path}
    assert circle_of(below) == {}


def test_each_library_is_imported_in_its_own_folder_only():
    borders = {
        "hydra": lambda path: path.parts[0] == "conf",
        "omegaconf": lambda path: path.parts[0] == "conf" or str(path) in {*VERBS, "training/run/run_folder.py"},
        "eccodes": lambda path: path.is_relative_to(GRIB) or path.is_relative_to(WRITING),
        "cfgrib": lambda path: path.is_relative_to(GRIB),
        "gribapi": lambda path: path.is_relative_to(GRIB) or path.is_relative_to(WRITING),
        "zarr": lambda path: path.is_relative_to(ZARR),
        "numcodecs": lambda path: path.is_relative_to(ZARR),
        "fsspec": lambda path: path.is_relative_to(ZARR) or str(path) == "data_pipeline/common/fetching.py",
        "pytorch_lightning": lambda path: path.parts[0] == "training",
        "lightning": lambda path: path.parts[0] == "training",
        "hashlib": lambda path: str(path) == "data_pipeline/common/identity.py",
        "hmac": lambda path: str(path) == "data_pipeline/prefetch/socket_peers.py",
    }
    assert [
        f"{path} imports {name}"
        for path, names in all_imports().items()
        for name in names
        if (allowed := borders.get(name.partition(".")[0])) and not allowed(path)
    ] == []


def distribution_name(requirement):
    """The name at the start of a requirement, as names of distributions are compared."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_the_program_imports_only_packages_that_the_wheel_requires():
    """Packages of the tests are not installed with the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    used = (*project["dependencies"], *extras["netcdf"], *extras["train"], *extras["icechunk"])
    required = {distribution_name(line) for line in used}
    distributions = packages_distributions()
    imported = {name.partition(".")[0] for names in all_imports().values() for name in names}
    # Triton comes with PyTorch for GPUs; kernels import it only where it works.
    others = imported - set(PACKAGES) - sys.stdlib_module_names - {"triton"}
    assert [name for name in others if not required & {distribution_name(found) for found in distributions[name]}] == []


def test_no_public_name_has_two_definitions():
    """A class, function or constant is defined once, except for entry points and the lists that packages collect."""
    roles = {"main", "run", "fit", "logger", "summarize_files", "SCORES", "DIAGRAMS"}
    places = {}
    for path in SOURCES:
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names = [node.name]
            else:
                targets = node.targets if isinstance(node, ast.Assign) else []
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            for name in names:
                if not name.startswith("_"):
                    places.setdefault(name, []).append(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in roles} == {}


def test_the_kind_of_a_distribution_is_asked_in_one_place_only():
    """What is special about a family is a method of `Distribution`: a new family then needs no change elsewhere."""
    folder = ROOT / DISTRIBUTION
    kinds = {
        node.name
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    found = [
        f"{path}:{node.lineno}"
        for path in PROGRAM
        if not path.is_relative_to(DISTRIBUTION)
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Call | ast.Compare)
        and (isinstance(node, ast.Compare) or getattr(node.func, "id", "") == "isinstance")
        and kinds & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    ]
    assert len(found) <= 1, found
