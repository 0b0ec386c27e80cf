# Every target sets itself up; see `make help`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
PYTEST := OMP_NUM_THREADS=2 $(PYTHON) -m pytest
BESIDE := OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder # two files at a time
KIT := tests/cluster/kit

.PHONY: help
help: ## these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1\t/' | expand -t 22

.PHONY: setup
setup: ## the virtual environment in .venv
	@.ci/setup

.PHONY: demo
demo: setup ## a chat answered by a pod, on a cluster that it makes (CONTEXT=name: on yours; CLUSTER=kind or local: on that kind)
	@$(PYTHON) -m tests.cluster.demo

.PHONY: demo-clean
demo-clean: setup ## remove what the demo made (the local cluster stays: make cluster-down)
	@$(PYTHON) -m tests.cluster.demo --clean

.PHONY: demo-server
demo-server: setup ## only the server on this machine, and a chat in the terminal
	@$(PYTHON) -m carousel_server chat

.PHONY: test
test: ## unit, server, model and operator tests
	@.ci/setup tests
	$(BESIDE) tests -m "not alone and not gpu and not cluster and not api"
	$(PYTEST) tests -m "alone and not gpu and not cluster and not api"
	@echo "Next: make test-cluster runs the tests on a real cluster."

.PHONY: test-api
test-api: setup ## the CRD, the charts and the operator on a bare API server (builds the cluster's binaries)
	@$(KIT)/build.sh
	$(BESIDE) tests -m api

.PHONY: test-cluster
test-cluster: setup images ## one row per promise on a real two-node cluster
	$(PYTEST) tests/cluster -m "cluster and not full"

.PHONY: test-cluster-full
test-cluster-full: setup images ## the long cluster matrix
	$(PYTEST) tests/cluster -m cluster -v -rP

.PHONY: test-gpu
test-gpu: ## what needs a CUDA device: kernels, engine, server (uses the python3 on the PATH)
	PYTHONPATH=server:kernels:operator$${PYTHONPATH:+:$$PYTHONPATH} python3 -m pytest -m gpu -raP -p no:cacheprovider \
		--durations=10 $$(grep -rl --include='test_*.py' 'pytest.mark.gpu' tests) $(ARGS)

.PHONY: lint
lint: setup ## ruff, mypy, generated files
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@$(PYTHON) -m carousel_operator.manifests --check

.PHONY: cluster-up
cluster-up: ## Kubernetes on this machine, two nodes with fake GPUs (needs root and Go)
	@$(KIT)/build.sh
	@$(KIT)/up.sh

.PHONY: cluster-down
cluster-down: ## end that cluster and remove all of it
	@$(KIT)/down.sh

.PHONY: images
images: cluster-up ## both images, built and loaded into that cluster
	@tests/cluster/images.sh load

.PHONY: manifests
manifests: setup ## generate manifests/ and docs/reference from the models
	@$(PYTHON) -m carousel_operator.manifests

.PHONY: bench
bench: setup ## the benches that need no GPU
	@$(KIT)/build.sh control-plane
	@for b in cpu_decode serving_overhead operator_scale; do echo "== $$b"; $(PYTHON) -m tests.bench.$$b; done
