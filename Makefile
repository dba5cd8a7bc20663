# What a newcomer types: `make demo`, `make test`, `make check`. Each sets up what it needs in .venv.
.PHONY: help demo results heat test test-all test-long test-gpu wheel docs gallery release check benchmarks setup lock clean

GPU_TESTS = $(shell cd tests && grep -lrE "tested_device|training_parts|correction_runs|standin_triton" --include="test_*.py" . | sed "s,^\.,tests,")
# Tests that compute on DEEPWEATHER_DEVICE.

help:
	@echo "make demo     make the twin experiment, train, evaluate, correct (about 5 minutes the first time)"
	@echo "make results  all models on the twin, three seeds each, to docs/results.* (hours)"
	@echo "make heat     the heat experiment of the mixture of experts, its ablations and rivals (docs/heat.md)"
	@echo "make benchmarks  measure every claim of docs/benchmarks.md (over 11 minutes)"
	@echo "make test     run the tests that a change can break; all tests the first time, and once a day"
	@echo "make test-all   run all of them      make test-long  those that take longest      make check    format, lint, types"
	@echo "make test-gpu   run the tests of trainings, kernels, corrections and scoring on a GPU"
	@echo "make wheel    build the wheel and run every verb from it, in an environment of its own (2 minutes)"
	@echo "make docs     build the docs site into site/; a broken link, a page without a place or an option without a meaning is an error"
	@echo "make release  VERSION=0.2.0: version, changelog, commit, tag, wheel and notes; with DRY_RUN=1 in a copy"
	@echo "make gallery  draw the pictures of docs/gallery.md anew (some minutes)"
	@echo "make setup    only set up .venv       make lock     renew requirements.lock    make clean"

demo: setup
	@scripts/demo t2m

heat: setup
	@scripts/heat

results: setup
	@scripts/results

test: setup
	@scripts/test

test-all: setup
	@scripts/test --all

test-long: setup
	@scripts/test --long

test-gpu: setup
	@DEEPWEATHER_DEVICE=cuda scripts/test -n 8 --dist loadfile $(GPU_TESTS)

wheel: setup
	@scripts/wheel

docs: setup
	@scripts/docs

release: setup
	@PYTHONPATH=. .venv/bin/python scripts/release.py $(VERSION) $(if $(DRY_RUN),--dry-run)

gallery: setup
	@scripts/gallery

check: setup
	@scripts/check

benchmarks: setup
	@for file in data_movement grib_read zarr_read grib_index samples moments feed regridding derivatives score prefetch_speed prepare_memory dask_memory halo_overlap scaling fit_memory coverage correct step peers; do .venv/bin/python -m benchmarks.$$file --json || exit; done

setup:
	@scripts/setup

lock: setup
	@scripts/lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

.DEFAULT:
	@echo "error: there is no target '$@'; 'make help' lists those there are" >&2; exit 2
