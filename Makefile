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

.PHONY: help demo test metal integrations sanitize arm64 lint format bench accuracy docs site links build clean
.DELETE_ON_ERROR:

help: ## Show this list
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## (.*)/  make \1|\2/' | \
	  awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: .venv/.built ## Fit a negative binomial regression with mlxops
	@$(BIN)/python examples/negative_binomial.py

test: .venv/.built ## Run the tests, then `make metal` (PYTEST_ARGS="-k name": some tests, alone)
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),$(PARALLEL)); status=$$?; \
	  $(if $(PYTEST_ARGS),,$(MAKE) --no-print-directory metal || status=1;) exit $$status

metal: .venv/.built ## Compile the launchers for macOS; run the tests with Metal kernels (PYTEST_ARGS)
	@$(if $(PYTEST_ARGS),,$(BIN)/mlxgen metal-check;) status=$$?; \
	  $(BIN)/mlxgen metal-test $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS),--jobs 0) || status=1; exit $$status

integrations: .venv/.built ## Run the tests in other libraries' models: mlx-lm's
	@$(PIP) install --group integrations
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),tests/programs/test_mlx_lm.py tests/programs/test_mlx_lm_dtypes.py)

# The operators once more, with what g++ checks while they run: bounds and undefined behaviour of all,
# then the order in which threads use memory. Python and MLX are as they are, so g++'s library is loaded
# before them, and libstdc++, whose exceptions it must know beforehand. Leaks are not looked for: MLX and
# Python keep what they have until the process ends.
sanitize: build/sanitize/address/.built build/sanitize/thread/.built ## Run operators' tests with sanitizers
	@$(call sanitized,address,asan) TEST_LARGE=1 $(BIN)/python -m pytest tests/ops tests/nn tests/special tests/testing \
	  $(PARALLEL); status=$$?; \
	  $(call sanitized,thread,tsan) $(BIN)/python -m pytest tests/ops/test_threads.py tests/ops/test_hostile.py \
	  -k thread || status=1; exit $$status

build/sanitize/%/.built: .venv/.ready $(SOURCES)
	@echo 'Building mlxops with the sanitizers of $*'
	@CXX='$(CXX)' CXXFLAGS='-O1 -g -fno-omit-frame-pointer $(SANITIZE_$*)' $(PIP) install \
	  --no-build-isolation --no-deps --upgrade --target $(@D) -C build-dir=$(@D)-build \
	  -C cmake.build-type=Debug -C install.strip=false .
	@ln -sfn "$$($(BIN)/python -c 'import mlx.core as mx; print(mx.__file__.rpartition("/")[0])')" $(@D)/mlx
	@touch $@

SANITIZE_address := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize=vptr
SANITIZE_thread := -fsanitize=thread
sanitized = LD_PRELOAD='$(shell $(CXX) -print-file-name=lib$(2).so) $(shell $(CXX) -print-file-name=libstdc++.so)' \
  PYTHONPATH='$(CURDIR)/build/sanitize/$(1)' UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
  TSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitize_thread.txt

# The operators as clang compiles them for arm64, where clang, QEMU and the arm64 packages of Debian or Ubuntu are
# or can be installed. cmake and ninja are those of this processor; clang-format is for people.
arm64: build/arm64/.built ## Run operators' tests as on arm64, emulated (PYTEST_ARGS)
	@PYTHONPATH='$(CURDIR)' build/arm64/bin/python -m pytest -p no:cacheprovider \
	  $(or $(PYTEST_ARGS),tests/ops tests/nn tests/special tests/testing $(PARALLEL))

build/arm64/.built: build/arm64/.python $(SOURCES)
	@echo 'Building mlxops for arm64'
	@PATH='$(CURDIR)/$(BIN)':"$$PATH" CXX='$(CURDIR)/$(@D)/bin/g++' $(PIP) --python $(@D)/bin/python install \
	  --no-build-isolation --no-deps -C build-dir=$(@D)/build .
	@touch $@

build/arm64/.python: build/arm64/.system .venv/.ready
	@grep -vE '^(cmake|ninja|clang-format)\>' .venv/requirements.txt > $(@D)/requirements.txt
	@$(PIP) --python $(@D)/bin/python install --requirement $(@D)/requirements.txt --group operators
	@touch $@

build/arm64/.system: tools/arm64.sh
	@echo 'Preparing build/arm64'
	@bash tools/arm64.sh $(@D)

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

# Sphinx starts anew each time: it does not know what the pictures and the contents are made of.
SPHINX = $(BIN)/python -m sphinx --conf-dir tools/site --fresh-env --fail-on-warning --keep-going --quiet --jobs auto

site: .venv/.built .venv/.site ## Make the site of README.md and docs/ (build/site), and open it in Chromium
	@rm -rf build/site
	@$(SPHINX) --builder html --doctree-dir build/site-doctrees . build/site
	@SITE=build/site $(BIN)/python -m pytest -q tests/site

links: .venv/.built .venv/.site ## Ask whether the pages' links to other hosts work
	@$(SPHINX) --builder linkcheck --define nb_execution_mode=off --doctree-dir build/site-doctrees . build/site-links

build: .venv/.built ## Generate, compile and install mlxops into .venv

clean: ## Remove everything that was built, and .venv
	rm -rf .venv build dist docs/operators mlxgen/build mlxgen/*.egg-info .mypy_cache .pytest_cache .ruff_cache

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

.venv/.site: .venv/.ready
	@$(PIP) install --group site
	@touch $@

.venv/.built: .venv/.ready $(SOURCES)
	@$(BIN)/mlxgen check
	@echo 'Building mlxops'
	@$(PIP) install --no-build-isolation --no-deps .
	@touch $@
