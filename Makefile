# All tasks of the project; each one builds what it needs. `make` lists them.
#
# Requirements: Python 3.10 or newer, make and a C++20 compiler. pip installs
# everything else, including CMake and Ninja, into .venv. A second run builds
# nothing again: .venv/.ready marks the installed tools, .venv/.built an
# installation of mlxops from the current sources.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PYTEST_ARGS ?=
ACCURACY_ARGS ?=
# Whole files, in the order that tests/conftest.py defines. A process that ends is the last failure,
# because pytest-xdist would start its whole file again.
PARALLEL := --numprocesses=auto --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
OPERATOR_TESTS := tests/linalg tests/ops tests/nn tests/special tests/testing

# Each of the many processes of the tests would compile mlxgen's Python code again.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := pyproject.toml $(wildcard mlx_ops.yaml ops/*.yaml README.md) \
  $(shell find csrc kernels python mlxgen -type f \
    -not -path '*/__pycache__/*' -not -path '*.egg-info/*' 2>/dev/null)
CPP_SOURCES := $(shell find csrc kernels examples/ports mlxgen/runtime benchmarks -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.metal' \) 2>/dev/null)

ATEN_SOURCES := aten/pyproject.toml aten/aten.yaml $(shell find aten/csrc aten/kernels aten/python -type f \
  -not -path '*/__pycache__/*' 2>/dev/null)

.PHONY: help demo op test test-all metal aten aten-metal conformance integrations sanitize arm64 lint format bench accuracy docs site pages links build clean
.DELETE_ON_ERROR:

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | \
	  awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

# The whole library if it is there, else only the operators that the example calls.
DEMO := $(if $(wildcard .venv/.built),.venv,build/demo)

demo: $(DEMO)/.built ## Fit a negative binomial regression with mlxops
	@PYTHONPATH='$(filter-out .venv,$(DEMO))' $(BIN)/python examples/negative_binomial.py

build/demo/.built: .venv/.ready $(SOURCES)
	@echo 'Building the operators of the example'
	@$(PIP) install --no-build-isolation --no-deps --upgrade --target $(@D) -C build-dir=$(@D)-build \
	  -C mlxgen.select='lgamma digamma polygamma' .
	@ln -sfn "$$($(BIN)/python -c 'import mlx.core as mx; print(mx.__file__.rpartition("/")[0])')" $(@D)/mlx
	@touch $@

op: .venv/.ready ## Build operators in the cache and run their checks (OP="a b"; ARGS="--metal --watch --bench")
	@$(BIN)/mlxgen test $(OP) $(ARGS)

# Only what the chosen tests need is built. Of mlx_aten all operators, if these were built once, else
# those of selected.txt.
ATEN := $(if $(wildcard .venv/.aten),.venv,build/aten)
NEEDED = $(if $(PYTEST_ARGS),$$($(BIN)/python -m tools.needs $(PYTEST_ARGS)),.venv/.built $(ATEN)/.aten)
# One operator of each form of Metal kernel: elementwise, rows with a gradient, atomics, several outputs.
METAL_OPS := axpby rms_norm_residual segment_sum sincos
LEFT_OUT := Left out: the tests marked `extended`, and other Metal kernels. `make test-all` runs them.

test: .venv/.ready ## Run the tests in minutes (PYTEST_ARGS="-k name": only some tests, with what they need)
	@needed="$(NEEDED)" && $(MAKE) --no-print-directory $$needed
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),-m 'not extended' tests $(PARALLEL)); status=$$?; \
	  $(if $(PYTEST_ARGS),,PYTHONPATH='$(filter-out .venv,$(ATEN))' $(BIN)/python -m pytest -m 'not extended' aten/tests/test_samples.py || \
	  status=1; $(BIN)/mlxgen test --metal $(METAL_OPS) || status=1; echo '$(LEFT_OUT)';) exit $$status

EXTENDED ?= extended

# All of mlx_aten is built first: `make test` then needs no build of some of its operators.
test-all: .venv/.aten ## Run all tests: those of `make test`, the extended ones, all Metal kernels, all of mlx_aten
	@$(MAKE) --no-print-directory test PYTEST_ARGS=; status=$$?; \
	  $(BIN)/python -m pytest -m '$(EXTENDED)' tests $(PARALLEL) || status=1; \
	  $(BIN)/python -m pytest aten/tests $(PARALLEL) || status=1; \
	  $(MAKE) --no-print-directory metal || status=1; exit $$status

# METAL_SHARE=3: a third of the tests, for each change; `make metal` also requires that each kernel is launched.
METAL_SHARE ?=
METAL_ARGS = $(or $(PYTEST_ARGS),$(if $(METAL_SHARE),$(OPERATOR_TESTS) $(PARALLEL)))

metal: .venv/.built ## Compile the launchers for macOS; run the tests with Metal kernels (PYTEST_ARGS)
	@$(if $(PYTEST_ARGS),,$(BIN)/mlxgen metal-check;) status=$$?; TEST_SHARE='$(METAL_SHARE)' \
	  $(BIN)/mlxgen metal-test $(if $(METAL_ARGS),-- $(METAL_ARGS),--jobs 0) || status=1; exit $$status

# With torch, in .venv or in another environment (TORCH=its python), the samples are also recorded again.
aten: .venv/.aten ## Build mlx_aten (aten/), and run its tests (PYTEST_ARGS; TORCH=python: compare with it)
	@ATEN_TORCH='$(TORCH)' $(BIN)/python -m pytest $(or $(PYTEST_ARGS),aten/tests $(PARALLEL))
	@$(if $(PYTEST_ARGS),,$(BIN)/python aten/tools/live.py $(if $(TORCH),--torch $(TORCH)))

aten-metal: .venv/.built ## Compile mlx_aten's launchers for macOS; run samples with Metal kernels (PYTEST_ARGS)
	@$(if $(PYTEST_ARGS),,$(BIN)/mlxgen metal-check --project aten --build-dir build/aten-macos;) status=$$?; \
	  $(BIN)/python aten/tools/metal.py $(PYTEST_ARGS) || status=1; exit $$status

.venv/.aten: .venv/.built $(ATEN_SOURCES)
	@echo 'Building mlx_aten'
	@$(PIP) install --no-build-isolation --no-deps -C build-dir='$(CURDIR)/build/aten-build' ./aten
	@touch $@

build/aten/.aten: .venv/.built $(ATEN_SOURCES) aten/tests/selected.txt
	@echo 'Building some operators of mlx_aten'
	@$(PIP) install --no-build-isolation --no-deps --upgrade --target $(@D) -C build-dir='$(CURDIR)/$(@D)/build' \
	  -C mlxgen.select='$(shell sed '/^#/d' aten/tests/selected.txt)' ./aten
	@ln -sfn "$$($(BIN)/python -c 'import mlx.core as mx; print(mx.__file__.rpartition("/")[0])')" $(@D)/mlx
	@touch $@

# MLX's functions from `mlxgen import mlx` in place of MLX's own: MLX_SOURCE is a checkout of MLX.
conformance: build/conformance/.built ## Run MLX's own tests with generated functions (MLX_SOURCE)
	@PYTHONPATH='$(CURDIR)/build/conformance/site' $(BIN)/python tests/conformance/compare.py mlx_functions \
	  build/conformance/outcomes
	@PYTHONPATH='$(CURDIR)/build/conformance/site' $(BIN)/python tests/conformance/languages.py mlx_functions \
	  build/conformance/programs

build/conformance/.built: .venv/.ready $(SOURCES) $(shell find tests/conformance/package -name '*.[pt][yo]*')
	@echo "Building MLX's functions"
	@mkdir -p $(@D)
	@cp -R tests/conformance/package/. $(@D)
	@$(BIN)/mlxgen import mlx -o $(@D)/mlx.yaml
	@$(PIP) install --no-build-isolation --no-deps --upgrade --target $(@D)/site -C build-dir=$(@D)/build ./$(@D)
	@ln -sfn "$$($(BIN)/python -c 'import mlx.core as mx; print(mx.__file__.rpartition("/")[0])')" $(@D)/site/mlx
	@touch $@

integrations: .venv/.built ## Run the tests with other libraries' models: mlx-lm, mlx-vlm
	@$(PIP) install --group integrations
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),tests/programs/test_mlx_lm.py tests/programs/test_mlx_lm_dtypes.py \
	  tests/programs/test_mlx_lm_experts.py tests/programs/test_mlx_vlm.py tests/programs/test_metal_kernels.py)

# The operators with g++'s sanitizers: first bounds and undefined behavior of all operators, then the
# order in which threads access memory. Python and MLX are unchanged, so that g++'s library must be
# loaded before them, and also libstdc++, whose exceptions the library must know first. Leaks are not
# detected, because MLX and Python keep memory until the process ends.
sanitize: build/sanitize/address/.built build/sanitize/thread/.built ## Run operators' tests with sanitizers
	@$(call sanitized,address,asan) TEST_LARGE=1 $(BIN)/python -m pytest $(OPERATOR_TESTS) tests/c/test_calls.py $(PARALLEL); status=$$?; \
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

# The operators compiled by clang for arm64. This needs clang, QEMU and the arm64 packages of Debian or
# Ubuntu, installed or installable. cmake and ninja are those of this processor; clang-format is not
# needed.
arm64: build/arm64/.built ## Run operators' tests on emulated arm64 (PYTEST_ARGS)
	@PYTHONPATH='$(CURDIR)' build/arm64/bin/python -m pytest -p no:cacheprovider \
	  $(or $(PYTEST_ARGS),$(OPERATOR_TESTS) $(PARALLEL))

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

lint: .venv/.ready ## Check style, types and entries
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict mlxgen tools
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mlxgen check
	@$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms \
	  $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

format: .venv/.ready ## Format Python, C++ and Metal sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP_SOURCES)

bench: .venv/.built ## Run the benchmarks against MLX
	@$(BIN)/python -m benchmarks

accuracy: .venv/.built ## Measure mlxops.special against mpmath (ACCURACY_ARGS=--write: write the page)
	@$(BIN)/python -m benchmarks.accuracy $(ACCURACY_ARGS)

docs: .venv/.ready ## Write the operator reference and the schema
	@$(BIN)/mlxgen docs

# Sphinx starts from scratch each time, because it does not know the inputs of the plots and contents.
SPHINX = $(BIN)/python -m sphinx --conf-dir tools/site --fresh-env --fail-on-warning --keep-going --quiet --jobs auto

site: .venv/.built .venv/.site ## Build the site from README.md and docs/ (build/site), and test it in Chromium
	@rm -rf build/site
	@$(SPHINX) --builder html --doctree-dir build/site-doctrees . build/site
	@SITE=build/site $(BIN)/python -m pytest -q tests/site

pages: .venv/.built .venv/.site ## Check links and headings of all pages, without running notebooks
	@$(SPHINX) --builder dummy --define nb_execution_mode=off --doctree-dir build/site-doctrees . build/site-pages

links: .venv/.built .venv/.site ## Check the pages' links to other hosts
	@$(SPHINX) --builder linkcheck --define nb_execution_mode=off --doctree-dir build/site-doctrees . build/site-links

build: .venv/.built ## Generate, compile and install mlxops into .venv

clean: ## Remove everything that was built, and .venv
	rm -rf .venv build dist docs/operators mlxgen/build mlxgen/*.egg-info .mypy_cache .pytest_cache .ruff_cache

# The environment: the generator in editable mode, the build requirements for the
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

# If only operators were edited, CMake installs the result: pip would take several seconds to pack and
# unpack the whole package. The folders with a file for each operator are removed before, because one
# may be gone.
OPERATORS := $(wildcard mlx_ops.yaml ops/*.yaml) $(shell find csrc kernels -type f 2>/dev/null)
INSTALLED = $(wildcard .venv/lib/python3*/site-packages/mlxops)

.venv/.built: .venv/.ready $(SOURCES)
	@$(BIN)/mlxgen generate --output build/generated > /dev/null \
	  --mlx "$$($(BIN)/python -c 'from importlib.metadata import version; print(version("mlx"))')"
	@echo 'Building mlxops'
	@if [ -z '$(filter-out $(OPERATORS),$?)' ] && [ -d '$(INSTALLED)' ] && [ -f build/build.ninja ]; then \
	  said="$$($(BIN)/cmake --build build 2>&1)" || { echo "$$said"; exit 1; }; \
	  rm -rf $(addprefix '$(INSTALLED)'/,include rust sources); \
	  $(BIN)/cmake --install build --prefix '$(INSTALLED)' --strip > /dev/null; \
	else \
	  $(PIP) install --no-build-isolation --no-deps .; \
	fi
	@touch $@
