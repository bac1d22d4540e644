# kvtier: `make demo` shows it, `make test` proves it. Everything that they need they install.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLUSTER := deploy/local/cluster
# Tests that start servers and time them run alone, all others two at a time
TIMED := $(addprefix tests/unit/,gateways loadtest plugin probe store trial)
BESIDE := -n 2 --dist loadgroup $(TIMED:%=--ignore=%)
# An existing cluster for the demo: make demo CONTEXT=name IMAGE=ref
CONTEXT ?=
IMAGE ?=
# Another local cluster has the addresses of offset 0: make demo OFFSET=2
OFFSET ?=

.PHONY: help demo demo-down test unit random apiserver cluster lint bench campaign campaign-engines storm \
	crd docs lock clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(VENV)/.installed ## Bring up a cluster (or use CONTEXT=), install kvtier, run a tier
	@$(BIN)/python deploy/demo/demo.py $(if $(CONTEXT),--context '$(CONTEXT)') \
		$(if $(IMAGE),--image '$(IMAGE)') $(if $(OFFSET),--offset '$(OFFSET)')

demo-down: ## Stop the demo's local cluster
	@$(CLUSTER) down --name demo

test: $(VENV)/.installed lint docs ## Lint, types, the site, and all three layers of tests
	$(CLUSTER) build
	$(BIN)/pytest $(BESIDE) tests/unit tests/apiserver
	$(BIN)/pytest $(TIMED) tests/cluster

unit: $(VENV)/.installed ## Pure tests and fakes: seconds
	$(CLUSTER) build
	$(BIN)/pytest $(BESIDE) tests/unit
	$(BIN)/pytest $(TIMED)

apiserver: $(VENV)/.installed ## Against a real kube-apiserver and etcd
	$(CLUSTER) build
	$(BIN)/pytest tests/apiserver

random: $(VENV)/.installed ## Property tests with examples that nobody has tried; repeat at will
	KVTIER_RANDOM=1 $(BIN)/pytest -n 2 $(shell grep -lr hypothesis tests/unit --include='test_*.py')

cluster: $(VENV)/.installed ## Against a real cluster: kubelets, containers, Valkey
	$(CLUSTER) build
	$(BIN)/pytest tests/cluster

lint: $(VENV)/.installed ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd deploy/local && ../../$(BIN)/mypy --strict -p localcluster
	cd deploy/demo && MYPYPATH=../../operator ../../$(BIN)/mypy --strict --config-file ../../pyproject.toml demo.py standin.py

bench: $(VENV)/.installed ## Ratios against floors, in one run
	$(CLUSTER) build
	$(BIN)/pytest tests/bench -s

# One test, or those of one kind: make campaign ONLY=soak
campaign: $(VENV)/.installed ## What takes long: kills, faults, an hour of steady state; into the docs
	$(CLUSTER) build
	KVTIER_RECORD=1 $(BIN)/pytest tests/campaign -s $(if $(ONLY),-k '$(ONLY)')

storm: $(VENV)/.installed ## A tier loses its cache, with admission and without; into the docs
	$(CLUSTER) build
	KVTIER_RECORD=1 $(BIN)/pytest tests/campaign/test_campaign_storm.py -s

campaign-engines: $(VENV)/.installed ## With the real LMCache and vLLM (7 GB, installed once): into the docs
	$(CLUSTER) build
	KVTIER_RECORD=1 $(BIN)/pytest tests/campaign-engines -s $(if $(ONLY),-k '$(ONLY)')

crd: $(VENV)/.installed ## Write the CRD and the field table again from the models
	$(BIN)/kvtier crd > crds/kvtier.dev_kvcachetiers.yaml
	cp crds/kvtier.dev_kvcachetiers.yaml charts/kvtier/files/

docs: $(VENV)/.installed ## Build the documentation site: dist/site/index.html; a broken link fails
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --builder html \
		--conf-dir docs/site --doctree-dir dist/doctrees . dist/site

lock: ## Write deploy/locks again from pyproject.toml (needs uv)
	uv pip compile --python-version 3.11 --universal --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header pyproject.toml -o deploy/locks/runtime.txt
	uv pip compile --python-version 3.11 --universal --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header --extra dev pyproject.toml -o deploy/locks/dev.txt
	uv pip compile --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header --overrides deploy/locks/engines-overrides.txt \
		deploy/locks/engines.in -o deploy/locks/engines.txt

clean: ## Remove what make and the tests wrote into the checkout
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

$(VENV)/.installed: deploy/locks/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kvtier needs Python 3.11 or newer; set PYTHON=python3.x" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { apt-get update -qq; apt-get install -y -qq python3-venv; }
	@echo 'installing Python packages into $(VENV), once: a minute or a few'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r deploy/locks/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@
