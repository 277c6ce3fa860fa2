# `make demo` and `make test` do their own set-up; `make help` lists the rest.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STUBS := calopd/v1

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-models test test-fast lint type proto proto-check bench bench-answers bench-teacher load-teacher lock clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## .venv with every pinned package (again: nothing to do)

$(READY): requirements/cpu.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 || command -v python3 >/dev/null || { echo "error: Python 3.11 is needed" >&2; exit 1; }
	@py=$$(command -v $(PYTHON) || command -v python3); \
	$$py -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "error: $$py is not Python 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	test -x $(BIN)/python || $$py -m venv $(VENV)
	@echo "installing the pinned packages into $(VENV) (a few minutes, once) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/cpu.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## train the demo student with Cal-OPD through the real services, on this CPU; evaluate it
	@$(BIN)/calopd run configs/demo.toml --overwrite
	@$(BIN)/calopd eval student=examples/demo/student teacher=examples/demo/teacher cal_opd=runs/demo \
	  --benchmark examples/demo/heldout.jsonl --problems 250 -n 2 --top-p 1 --max-tokens 96 --max-prompt-tokens 256 \
	  --in-flight 128 -o runs/demo/eval

demo-models: $(READY) ## make the demo's models and data again from their seed
	$(BIN)/python -m examples.make_demo --out examples/demo

test: $(READY) ## all tests
	$(BIN)/python -m pytest

test-fast: $(READY) ## the tests that take seconds
	$(BIN)/python -m pytest -m "not slow"

lint: $(READY) ## ruff, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports

type: $(READY) ## mypy
	$(BIN)/mypy

proto: $(READY) ## generate the stubs from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/calopd/v1/*.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=. proto/calopd/v1/teacher_scorer.proto

proto-check: $(READY) ## fail where the committed stubs are not those of proto/
	@rm -rf build/stubs && mkdir -p build/stubs
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=build/stubs --pyi_out=build/stubs proto/calopd/v1/*.proto
	@$(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=build/stubs proto/calopd/v1/teacher_scorer.proto
	@for file in build/stubs/calopd/v1/*; do cmp $$file $(STUBS)/$$(basename $$file) || { echo "error: stubs differ from proto/: run make proto" >&2; exit 1; }; done

bench: $(READY) ## the LM head's ratios, written to benchmarks/results/
	$(BIN)/python -m benchmarks.lm_head

bench-answers: $(READY) ## our checker of answers beside math-verify alone, written to docs/answers.md
	$(BIN)/python -m benchmarks.answers

bench-teacher: $(READY) ## the teacher against transformers, vLLM and the limit; memory, contexts, transport (15 min)
	$(BIN)/python -m benchmarks.teacher
	$(BIN)/python -m benchmarks.teacher_costs

load-teacher: $(READY) ## 64 clients on two teachers for two minutes: cancellations, SIGTERM, memory
	$(BIN)/python -m benchmarks.teacher_load

lock: ## write requirements/cpu.lock from the environment as it is
	@{ sed -n '/^#/p' requirements/cpu.lock; $(BIN)/pip freeze --exclude-editable --all | grep -viE '^(#|-e|calopd|pip=)' | sed 's/+cpu//' | sort -f; } > build.lock && mv build.lock requirements/cpu.lock

clean: ## remove the environment, runs and caches
	rm -rf $(VENV) runs build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info
