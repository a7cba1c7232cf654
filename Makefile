# Every task of the project, each making what it needs: `make` lists them.
#
# Needed beforehand: Python 3.10 or newer, make and a C++20 compiler. Everything
# else, CMake and Ninja too, is installed by pip into .venv. A second run builds
# nothing again: .venv/.ready says that the tools are there, .venv/.built that
# mlxops is installed as the sources are.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PYTEST_ARGS ?=
ACCURACY_ARGS ?=
# Whole files, in the order in which tests/conftest.py puts them.
PARALLEL := --numprocesses=auto --dist=loadfile --no-loadscope-reorder

SOURCES := pyproject.toml $(wildcard mlx_ops.yaml README.md) \
  $(shell find csrc kernels python mlxgen -type f \
    -not -path '*/__pycache__/*' -not -path '*.egg-info/*' 2>/dev/null)
CPP_SOURCES := $(shell find csrc kernels mlxgen/runtime benchmarks -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.metal' \) 2>/dev/null)

.PHONY: help demo test metal lint format bench accuracy docs build clean
.DELETE_ON_ERROR:

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | \
	  awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: .venv/.built ## Fit a negative binomial regression with mlxops
	@$(BIN)/python examples/negative_binomial.py

test: .venv/.built ## Run the tests, then `make metal` (PYTEST_ARGS="-k name": some tests, alone)
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),$(PARALLEL)); status=$$?; \
	  $(if $(PYTEST_ARGS),,$(MAKE) --no-print-directory metal || status=1;) exit $$status

metal: .venv/.built ## Compile the launchers for macOS; run the tests with Metal kernels (PYTEST_ARGS)
	@$(if $(PYTEST_ARGS),,$(BIN)/mlxgen metal-check;) status=$$?; \
	  $(BIN)/mlxgen metal-test $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS),--jobs 0) || status=1; exit $$status

lint: .venv/.ready ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict mlxgen tools
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: .venv/.ready ## Bring Python, C++ and Metal sources into style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP_SOURCES)

bench: .venv/.built ## Measure against MLX alone
	@$(BIN)/python -m benchmarks

accuracy: .venv/.built ## Measure mlxops.special against mpmath (ACCURACY_ARGS=--write: the page)
	@$(BIN)/python -m benchmarks.accuracy $(ACCURACY_ARGS)

docs: .venv/.ready ## Write the reference of the operators, and the schema
	@$(BIN)/mlxgen docs

build: .venv/.built ## Generate, compile and install mlxops into .venv

clean: ## Remove everything that was built, and .venv
	rm -rf .venv build dist mlxgen/build mlxgen/*.egg-info .mypy_cache .pytest_cache .ruff_cache

# The environment: the generator as it lies here, what building needs for the
# MLX that pyproject.toml pins, and the tools.
.venv/.ready: pyproject.toml mlxgen/pyproject.toml mlxgen/package/backend.py mlxgen/package/compat.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'mlxops needs Python 3.10 or newer: make PYTHON=python3.12' >&2; exit 1; }
	@echo 'Preparing .venv'
	@$(PYTHON) -m venv .venv
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable ./mlxgen
	@$(BIN)/python -m mlxgen.build > .venv/requirements.txt
	@$(PIP) install --requirement .venv/requirements.txt --group dev
	@touch $@

.venv/.built: .venv/.ready $(SOURCES)
	@$(BIN)/mlxgen check
	@echo 'Building mlxops'
	@$(PIP) install --no-build-isolation --no-deps .
	@touch $@
