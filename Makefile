# Needs python3 (3.11 to 3.13), make and a Python package index. `make` lists what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Minutes of `make gpu`: what the tests leave is the benchmark's.
GPU_MINUTES ?= 9
# What `make demo` compares: the tiny recipe of a task. `make demo TASK=image-classification`, say.
TASK ?= causal-lm
TASKS ?= $(sort $(patsubst src/magneto/recipes/%/tiny.yaml,%,$(wildcard src/magneto/recipes/*/tiny.yaml)))
DEMO ?= runs/demo/$(TASK)
DEMO_GRID_causal-lm := --placements post,pre,sub,peri --lrs 1e-3,3e-3,1e-2 --seeds 1,2,3
DEMO_GRID_others := --placements post,pre,normformer,deepnorm,sub --lrs 1e-3,3e-3,1e-2
DEMO_GRID ?= $(or $(DEMO_GRID_$(TASK)),$(DEMO_GRID_others))
# Deep enough that placements differ, and on bytes, so that what learns is far below their
# frequencies after few steps: 36 runs in five minutes of two quiet cores.
DEMO_ARGS_causal-lm := --model.layers 24 --model.width 64 --model.ffn_width 256 \
	--data.tokenizer bytes --data.max_length 64 --training.steps 150 --training.batch_size 8
# What the best run then does.
DEMO_USE_causal-lm = $(BIN)/magneto generate $(DEMO)/best "This function returns" --temperature 0.6
DEMO_ARGS ?= $(DEMO_ARGS_$(TASK))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without cached bytecode, each process compiles all modules: tests are collected in 22 s, not 8 s.
unexport PYTHONDONTWRITEBYTECODE
# Threads of numpy, torch and numba in each test process: two workers share the cores.
ONE_THREAD := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.PHONY: help setup test lint types unit distributed slow gpu bench demo demo-all first-run docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp-dev ## make .venv with all that tests need (does nothing the second time)

$(VENV)/.stamp-core: pyproject.toml constraints.txt
	@echo "setup: a virtual environment in $(VENV), then torch, then magneto with its extras text, vision, speech and hf"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) \
		else f"setup: Python 3.11 to 3.13 is needed, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[text,vision,speech,hf]'
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-core
	@echo "setup: what the tests need"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[text,vision,speech,hf,dev]'
	# Our formats are held against timm's own classes, which compute nothing with its torchvision.
	$(BIN)/python -m pip install --quiet --no-deps timm==1.0.31
	# Maximal update parametrisation is held against its authors' package, which asks for torchvision.
	$(BIN)/python -m pip install --quiet --no-deps mup==1.0.0 || echo "setup: without mup"
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-dev
	@echo "setup: torchscale, which other versions of its dependencies serve too"
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/peers \
		torchscale==0.3.0 fairscale==0.4.13 || echo "setup: without torchscale, which the results will say"
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-core
	@echo "setup: what the documentation needs"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[text,hf,docs]'
	@touch $@

test: setup lint types unit ## set-up, lint, types and all default tests; prints the slowest ten

lint: $(VENV)/.stamp-dev ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: $(VENV)/.stamp-dev ## static types
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(VENV)/.stamp-dev ## the default tests; in another order by PYTEST_ARGS="--order reversed"
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

distributed: $(VENV)/.stamp-dev ## tests with several processes
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) -m distributed $(PYTEST_ARGS)

slow: $(VENV)/.stamp-dev ## tests that take minutes
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) -m slow $(PYTEST_ARGS)

gpu: $(VENV)/.stamp-dev ## on a machine with a GPU: its tests, then its benchmark (GPU_MINUTES=9 in all)
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else \
		f"make gpu: torch {torch.__version__} sees no CUDA device here; see docs/guide/gpus.md")'
	@start=$$(date +%s); failed=0; \
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS) tests/gpu || failed=1; \
	left=$$((60 * $(GPU_MINUTES) - 20 - $$(date +%s) + start)); \
	echo "gpu: the benchmark has $$left seconds"; \
	$(BIN)/python -m benchmarks.gpu --seconds $$left || failed=1; \
	exit $$failed

bench: $(VENV)/.stamp-bench ## a training step beside its peers, and how it grows, on a CPU that is idle (20 minutes)
	PYTHONPATH=$(VENV)/peers $(BIN)/python -m benchmarks.bench --profile $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python docs/generate_results.py

demo: $(VENV)/.stamp-core ## which placement, at which learning rate? a comparison and its report (10 minutes in all)
	$(ONE_THREAD) $(BIN)/magneto compare $(TASK)/tiny $(DEMO_GRID) $(DEMO_ARGS) --jobs 2 --out $(DEMO)
	$(DEMO_USE_$(TASK))

demo-all: ## the demo of every task, one after the other
	@for task in $(TASKS); do $(MAKE) --no-print-directory demo TASK=$$task || exit 1; done

first-run: $(VENV)/.stamp-core ## train a small language model, set it beside simple ones, let it write (4 minutes)
	@rm -rf runs/first
	$(BIN)/magneto train causal-lm/tiny --model.placement sub --out runs/first
	$(BIN)/python examples/bits_per_byte.py runs/first
	$(BIN)/magneto generate runs/first "This function returns"

docs: $(VENV)/.stamp-docs ## build the documentation into site/; warnings are errors
	$(BIN)/python docs/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## remove the environment, caches and built documentation; runs/ stays
	rm -rf $(VENV) site build dist .pytest_cache .ruff_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
