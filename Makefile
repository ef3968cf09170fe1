# Each target creates the environment when it is missing and installs what the project asks for.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
MINUTES ?= 5
SEED ?= 0
VERSIONS ?=

WING ?=

DEVICE ?= cuda
WHEELS ?=
# The interpreter that holds torch for the GPU: the environment's own, if there is one.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.PHONY: demo test test-slow test-versions bench gpu fuzz check docs format clean
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	$(BIN)/openwafer demo

test check: $(INSTALLED)
	scripts/check $(if $(WING),--wing $(WING))

test-slow: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[notebooks,launchers,trainers]'
	$(BIN)/python -m pytest -m slow -o faulthandler_timeout=0

test-versions:
	$(PYTHON) scripts/versions.py $(VERSIONS)

bench: $(INSTALLED)
	set -e; for script in benchmarks/bench_*.py; do $(BIN)/python $$script; done

gpu:
	$(GPU_PYTHON) benchmarks/gpu/measure.py --device $(DEVICE) $(if $(WHEELS),--wheels $(WHEELS))

fuzz: $(INSTALLED)
	$(BIN)/python benchmarks/fuzz_csl.py --minutes $(MINUTES) --seed $(SEED)

docs: $(INSTALLED)
	scripts/build-docs

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
