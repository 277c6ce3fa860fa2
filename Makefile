# `make demo` and `make test` set up the environment themselves; `make help` lists all targets.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STUBS := calopd/transport/v1
UV := uv==0.13.8

# `docker compose` if it is available, else the older docker-compose.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
ON_GPU := docker-compose.yml:docker-compose.override.yml
ON_CPU := docker-compose.yml:docker-compose.cpu.yml
# A variable of the environment, else of .env, else a default: the order of compose.
setting = $${$(1):-$$(sed -n 's/^$(1)=//p' .env | tail -1 | grep . || echo $(2))}
# Old versions need these variables to build with BuildKit.
export DOCKER_BUILDKIT := 1
export COMPOSE_DOCKER_CLI_BUILD := 1
export CALOPD_VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' calopd/__init__.py)
export REVISION := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
DEPLOY := build/deploy
GPU := build/gpu

.DEFAULT_GOAL := help
.PHONY: help setup setup-gpu demo experiment-demo experiment-smollm2 demo-models test test-fast golden lint type proto proto-check docs docs-check lock clean
.PHONY: chaos fuzz soak certs audit sbom
.PHONY: bench-learner bench-pipeline bench-packing bench-policies bench-memory bench-answers bench-teacher bench-teacher-engines load-teacher bench-tsd
.PHONY: up up-cpu down compose dashboards dashboard-pictures k8s-render k8s-up k8s-status k8s-logs k8s-stop test-deploy test-compose test-k8s test-fresh test-gpu

help: ## list all targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## create .venv with all pinned packages (does nothing if it is up to date)

# .ready names the kind of the environment: a change of the pins must not turn a GPU environment into a CPU one.
$(READY): requirements/cpu.lock requirements/gpu.lock pyproject.toml
	@$(PYTHON) -m requirements.install $$(cat $@ 2>/dev/null | grep . || echo cpu) --venv $(VENV) --force

setup-gpu: ## create .venv with the versions of the GPU image; FORCE=1 installs without an NVIDIA driver
	@$(PYTHON) -m requirements.install gpu --venv $(VENV) $(if $(FORCE),--force)

demo: $(READY) ## train the demo student with Cal-OPD through the real services, on this CPU; evaluate it
	@$(BIN)/calopd run configs/demo.toml --overwrite
	@$(BIN)/calopd eval student=examples/demo/student teacher=examples/demo/teacher cal_opd=runs/demo \
	  --benchmark examples/demo/heldout.jsonl --problems 250 -n 2 --top-p 1 --max-tokens 96 --max-prompt-tokens 256 \
	  --in-flight 128 --engine torch -o runs/demo/eval

experiment-demo: $(READY) ## the paper's experiments on the demo pair, two seeds, on this CPU: 40 runs, 45 minutes; repeat it to resume
	@$(BIN)/calopd experiment plan configs/experiments/demo.toml
	@$(BIN)/calopd experiment run configs/experiments/demo.toml

GSM8K ?= data
experiment-smollm2: $(READY) ## OPD against Cal-OPD on SmolLM2-135M, GSM8K=folder with gsm8k_train.jsonl and gsm8k_test.jsonl; hours
	@$(BIN)/python -m examples.smollm2.prepare --train $(GSM8K)/gsm8k_train.jsonl --test $(GSM8K)/gsm8k_test.jsonl
	@$(BIN)/calopd experiment run examples/smollm2/experiment.toml

demo-models: $(READY) ## generate the demo's models and data again from their seed
	$(BIN)/python -m examples.make_demo --out examples/demo

# Each process of the tests starts services of its own: three of them want about 9 GB, and keep two cores busy.
JOBS ?= 3
test: $(READY) ## run all tests, in JOBS=3 processes
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-fast: $(READY) ## run the fast tests only
	$(BIN)/python -m pytest -m "not slow"

golden: $(READY) ## run the golden run twice: every metric must agree bit for bit
	CALOPD_GOLDEN=exact $(BIN)/python -m pytest tests/e2e/test_golden.py

KILLS ?= 100
SEED ?= 1
chaos: $(READY) ## a small real run while KILLS=100 processes are killed, others frozen, cut off, their files damaged; SEED=1; audited
	$(BIN)/python -m tests.chaos --kills $(KILLS) --seed $(SEED)

STEPS ?= 300
soak: $(READY) ## a run of STEPS=300 small steps: memory of every process, open files, files and Redis keys must stay flat
	$(BIN)/python -m tests.soak --steps $(STEPS)

N ?= 100000
fuzz: $(READY) ## N=100000 spoiled inputs for every surface: gRPC, HTTP, queue, TOML, JSONL, parquet, policies, checkpoints; SEED=1
	$(BIN)/python -m tests.fuzz --inputs $(N) --seed $(SEED)

lint: $(READY) ## ruff, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports

type: $(READY) ## mypy
	$(BIN)/mypy

proto: $(READY) ## generate the stubs from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/calopd/transport/v1/*.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=. proto/calopd/transport/v1/teacher_scorer.proto

proto-check: $(READY) ## fail if the committed stubs differ from those generated from proto/
	@rm -rf build/stubs && mkdir -p build/stubs
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=build/stubs --pyi_out=build/stubs proto/calopd/transport/v1/*.proto
	@$(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=build/stubs proto/calopd/transport/v1/teacher_scorer.proto
	@for file in build/stubs/calopd/transport/v1/*; do cmp $$file $(STUBS)/$$(basename $$file) || { echo "error: stubs differ from proto/: run make proto" >&2; exit 1; }; done

docs: $(READY) ## write the pages of docs/ that are generated from the code
	$(BIN)/python -m docs.generate

docs-check: $(READY) ## fail if a generated page of docs/ differs from the code
	$(BIN)/python -m docs.generate --check

bench-learner: $(READY) ## compare a learner step with TRL, and its LM head with full logits; writes benchmarks/results/ (8 min)
	$(BIN)/python -m benchmarks.learner

bench-packing: $(READY) ## compare a learner step on packed sequences with a padded one; writes benchmarks/results/
	$(BIN)/python -m benchmarks.packing

bench-tsd: $(READY) ## benchmark the analysis of a synthetic study of 60 M tokens x 9 contexts (2.6 GB in the temporary directory)
	$(BIN)/python -m benchmarks.tsd

bench-pipeline: $(READY) ## how much of a step is overlap, with emulated engines and real services (10 min on two idle cores)
	$(BIN)/python -m benchmarks.pipeline

bench-policies: $(READY) ## benchmark publishing and loading a policy of 135M parameters, and its checkpoint
	$(BIN)/python -m benchmarks.policies

bench-answers: $(READY) ## compare the answer checker with math-verify alone; writes docs/answers.md
	$(BIN)/python -m benchmarks.answers

bench-memory: $(READY) ## count the peak memory of every role of every recipe with fake tensors, beside the formula (1 min)
	$(BIN)/python -m benchmarks.memory

bench-teacher: $(READY) ## compare the teacher with transformers, vLLM and a lower bound; measure memory, contexts, transport (25 min)
	$(BIN)/python -m benchmarks.teacher
	$(BIN)/python -m benchmarks.teacher_costs

TEACHER ?= examples/demo/teacher
bench-teacher-engines: $(READY) ## compare the torch and the vLLM engine on TEACHER=CONFIG.toml or a model, on this machine
	$(BIN)/python -m benchmarks.teacher_engines $(TEACHER)

load-teacher: $(READY) ## load test: 64 clients on two teachers for two minutes, with cancellations, SIGTERM and memory checks
	$(BIN)/python -m benchmarks.teacher_load

CERTS ?= build/certs
certs: $(READY) ## certificates for mutual TLS in CERTS=build/certs, for HOSTS="name address ..."; prints the variables to export
	@$(BIN)/python -m deploy.tls.certificates $(CERTS) $(HOSTS)

audit: $(READY) ## ask for known vulnerabilities of all pinned packages; needs the internet
	@$(BIN)/python -m requirements.audit

sbom: $(READY) ## list all pinned packages as CycloneDX files in build/sbom
	@$(BIN)/python -m requirements.sbom build/sbom

up: .env ## start the whole system in containers on this host's GPUs, as [resources] of CONFIG in .env places them
	@deploy/docker/build.sh "$(call setting,IMAGE_TAG,local)"
	@docker run --rm --network none --user "$$(id -u):$$(id -g)" -v "$(CURDIR):/src:ro" -w /src \
	  "calopd/learner:$(call setting,IMAGE_TAG,local)" python -m deploy.docker.compose "$(call setting,CONFIG,)" > .override.yml \
	  || { rm -f .override.yml; exit 1; }
	@cmp -s .override.yml docker-compose.override.yml || test -z "$$($(COMPOSE) ps -a -q)" || $(MAKE) -s down
	@mv .override.yml docker-compose.override.yml
	@$(call start,$(ON_GPU))

up-cpu: .env ## start the demo in containers, without GPUs
	@deploy/docker/build.sh "$(call setting,IMAGE_TAG,local)-cpu" python:3.11-slim-bookworm
	@$(call start,$(ON_CPU))

# Another stack than the one of .env replaces it: the size of the tmpfs for policies cannot change in place.
# The versions of the build are left out: with them, older versions of compose replace the containers at the next plain `up`.
start = grep -qx "COMPOSE_FILE=$(1)" .env || test -z "$$($(COMPOSE) ps -a -q)" || $(MAKE) -s down; \
  umask 077; { grep -v '^COMPOSE_FILE=' .env; echo "COMPOSE_FILE=$(1)"; } > .env.new && mv .env.new .env; \
  REVISION= CALOPD_VERSION= $(COMPOSE) up -d --no-build --remove-orphans \
  && echo "Grafana: http://127.0.0.1:$(call setting,GRAFANA_PORT,3000) (admin, GRAFANA_PASSWORD of .env); logs: $(COMPOSE) logs -f learner"

down: .env ## stop the containers; the volumes keep runs, models and metrics
	$(COMPOSE) down --remove-orphans
	@docker volume ls -q --filter "name=^$(call setting,COMPOSE_PROJECT_NAME,$(notdir $(CURDIR)))_policies$$" | xargs -r docker volume rm >/dev/null

.env: | .env.example
	@umask 077; for name in CALOPD_TOKEN REDIS_PASSWORD GRAFANA_PASSWORD; do \
	  echo "s/^$$name=$$/$$name=$$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')/"; done | sed -f - .env.example > $@
	@echo "created .env with new secrets"

dashboards: $(READY) ## generate the Grafana dashboards and the rules for the Prometheus operator
	$(BIN)/python -m deploy.monitoring.grafana.dashboards

dashboard-pictures: $(READY) .env ## draw docs/images/dashboard-*.png from the running stack's Prometheus; ARGS="--minutes 20"; needs Chromium
	$(BIN)/python -m deploy.monitoring.grafana.pictures --prometheus "http://127.0.0.1:$(call setting,PROMETHEUS_PORT,9090)" $(ARGS)

compose: $(READY) ## write docker-compose.override.yml for the default pair
	$(BIN)/python -m deploy.docker.compose > .override.yml && mv .override.yml docker-compose.override.yml

k8s-render: ## render the manifests of every overlay into build/k8s/; they contain the secrets
	@deploy/k8s/cluster.sh secrets
	@mkdir -p build; umask 077; mkdir -p build/k8s; for overlay in $(notdir $(wildcard deploy/k8s/overlays/*)); do rm -f build/k8s/$$overlay.yaml; \
	  kubectl kustomize deploy/k8s/overlays/$$overlay > build/k8s/$$overlay.yaml && echo build/k8s/$$overlay.yaml || exit 1; done

OVERLAY ?= gpu-8
k8s-up: ## install, start, change, upgrade or resume the run of OVERLAY (default: gpu-8) on the cluster of kubectl
	@deploy/k8s/cluster.sh up $(OVERLAY)

k8s-status: ## show the pods of the run on the cluster, and how far it is
	@deploy/k8s/cluster.sh status

k8s-logs: ## follow the learner's log on the cluster
	@deploy/k8s/cluster.sh logs

k8s-stop: ## stop the run on the cluster and free its GPUs; k8s-up resumes it
	@deploy/k8s/cluster.sh stop

# The checks skip tools that cannot be installed, and report it.
$(DEPLOY)/.ready: requirements/deploy.lock tests/deploy/grafana/package.json
	@mkdir -p $(DEPLOY)/node
	@test -x $(DEPLOY)/venv/bin/python || $(BIN)/python -m venv $(DEPLOY)/venv
	@$(DEPLOY)/venv/bin/pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/deploy.lock || echo "validators cannot be installed here"
	@cp tests/deploy/grafana/package.json $(DEPLOY)/node/
	@cd $(DEPLOY)/node && npm install --silent --no-audit --no-fund --ignore-scripts || echo "Grafana's types cannot be installed here"
	@touch $@

test-deploy: $(READY) $(DEPLOY)/.ready ## check images, compose, Kubernetes and monitoring files without running them
	$(BIN)/python -m tests.deploy.check
	CALOPD_TEST_DEPLOY=tools $(BIN)/python -m pytest -q tests/deploy

test-compose: $(READY) ## with a Docker engine: start the CPU stack, train to the end, kill each role, stop it
	CALOPD_TEST_DEPLOY=engine $(BIN)/python -m pytest -s --timeout=3600 tests/deploy/test_rendezvous.py tests/deploy/test_stack.py

K8S_BIN ?=
test-k8s: $(READY) ## with etcd and the binaries of a control plane in K8S_BIN: apply every overlay to it, with fake nodes
	CALOPD_TEST_DEPLOY=cluster K8S_BIN="$(K8S_BIN)" $(BIN)/python -m pytest -s -rs --timeout=1800 tests/deploy/test_control_plane.py

test-fresh: $(READY) ## with a Docker engine: make setup and make demo on a new machine, a container of plain Debian
	$(BIN)/python -m tests.deploy.fresh_machine

# If packages cannot be installed, the tests that need them are skipped, and say so.
$(GPU)/.ready: requirements/torch-cuda.lock requirements/gpu.lock tests/gpu/prepare.py | $(READY)
	@$(BIN)/python -m tests.gpu.prepare $(GPU)

test-gpu: $(READY) $(GPU)/.ready ## check the GPU path as far as that is possible without a GPU (docs/gpu.md)
	CALOPD_TEST_GPU=$(GPU) $(BIN)/python -m pytest -q tests/gpu

lock: ## resolve the lock files again; ARGS="--upgrade-package NAME" for a newer version
	@test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && build/lock/bin/python -m pip install -q --disable-pip-version-check $(UV); }
	@PATH=$(CURDIR)/build/lock/bin:$$PATH $(PYTHON) -m requirements.lock $(ARGS)

clean: ## remove the environment and caches; runs/ and evaluations/ stay
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info
