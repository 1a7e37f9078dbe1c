# Every target sets up what it needs; a machine with Python >= 3.11 and make is enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SCALE  ?= check
OUT    ?= paper-report

.PHONY: help paper test test-frameworks test-long lint format torch bench docs clean

help:
	@echo "make paper   the verdicts, then a check of them by running a sample again; report in OUT=$(OUT)"
	@echo "             SCALE=smoke|quick|full measures the paper afresh"
	@echo "make test    run the tests (ARGS=...)      make lint   check style, types, layers"
	@echo "make test-frameworks, make test-long       the tests that need PyTorch; that take long"
	@echo "make torch   add PyTorch and its kin        make format rewrite the code in house style"
	@echo "make bench   compare speed with the peers  make docs   build the documentation site"
	@echo "make clean   remove the environments"

paper: $(VENV)/.ready
	$(BIN)/noisescale paper --scale $(SCALE) --out $(OUT)

# Every worker takes the next file when it is through with one; tests that share something dear are
# one file to them (tests/conftest.py). One thread of BLAS and PyTorch each: threads of several pools
# that spin on the same cores wait for one another.
# XLA compiles more than it computes here, and without optimizations in half of the time.
XLA_FLAGS ?= --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 XLA_FLAGS="$(XLA_FLAGS)" $(BIN)/python -m pytest \
  --numprocesses auto --dist loadfile --no-loadscope-reorder

test: $(VENV)/.ready
	$(PYTEST) -m "not long and not frameworks" $(ARGS)

test-frameworks: $(VENV)/.torch
	$(PYTEST) -m "frameworks and not long" $(ARGS)

test-long: $(VENV)/.torch
	$(PYTEST) -m long $(ARGS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/layers.py
	$(BIN)/python tools/size.py

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

torch: $(VENV)/.torch

# The pin keeps pip from choosing a CUDA build of several gigabytes.
$(VENV)/.torch: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet torch==2.13.0 \
	  --editable '.[lightning,transformers,skorch,optax]'
	@touch $@

# laplace-torch and what it imports, without dependencies: torchvision would replace PyTorch.
PEERS := laplace-torch==0.3 torchmetrics lightning-utilities backpack-for-pytorch \
  curvlinops-for-pytorch asdfghjkl einops einconv unfoldNd linear_operator jaxtyping \
  wadler_lindig mpmath tqdm opacus

# An environment of its own, so that PyTorch stays out of the one the tests use.
bench: .venv-bench/.ready
	.venv-bench/bin/python benchmarks/sgd_step.py
	.venv-bench/bin/python benchmarks/sweep.py
	.venv-bench/bin/python benchmarks/gradient_noise.py
	.venv-bench/bin/python benchmarks/evidence.py
	.venv-bench/bin/python benchmarks/evidence_or_validation.py
	.venv-bench/bin/python benchmarks/deep_evidence.py
	.venv-bench/bin/python benchmarks/betting.py
	.venv-bench/bin/python benchmarks/map_evidence.py
	.venv-bench/bin/python benchmarks/tune.py
	.venv-bench/bin/python benchmarks/tune_level.py
	.venv-bench/bin/python benchmarks/watch.py
	.venv-bench/bin/python benchmarks/pytorch.py

# An environment of its own as well: the site's tools are not the library's.
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict
	@grep -q 'log_evidence</span><span class="p">(</span><span class="n">apply_fn<' \
	  build/site/api/evidence.html || { echo "build/site/api has no signatures"; exit 1; }
	@grep -q '<mfrac>' build/site/noise.html || { echo "build/site has no formulas"; exit 1; }
	@echo "Documentation: $(CURDIR)/build/site/index.html"

.venv-docs/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "noisescale needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1): set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	@touch $@

.venv-bench/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --editable '.[bench]'
	.venv-bench/bin/python -m pip install --quiet --no-deps $(PEERS)
	@touch $@

clean:
	rm -rf $(VENV) .venv-bench .venv-docs
