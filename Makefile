# make run: see it work. make test: all gates. Only Python 3.11 or newer is needed; the rest is installed below this folder.
PYTHON = .venv/bin/python
# The environments keep the Python that they were made with, until PYTHON3 names another one.
PYTHON3 ?= $(shell $(PYTHON) -c 'import sys; print(sys.executable)' >/dev/null 2>&1 && echo $(PYTHON) || echo python3)
SAM = .local/venvs/sam/bin/sam
export PYTHONPATH = layers/threadkeep:layers/agents:clients/python
export SAM_CLI_TELEMETRY = 0
unexport PYTHONDONTWRITEBYTECODE  # environments are compiled when they are first used

.PHONY: setup run up down studio lint test unit contract stack clients mutants bench openapi deploy

setup:  ## Install what the lock files name, if they changed
	@$(PYTHON3) local/setup.py

run: setup  ## Start everything and have a short conversation
	@$(PYTHON) -m local.demo

up: setup  ## Start and deploy on this machine. AGENTS=<folder> deploys another agents package, PORT=<port>
	@$(PYTHON) -m local up $(if $(AGENTS),--agents "$(AGENTS)") $(if $(PORT),--port $(PORT))

studio: setup  ## Mastra Studio for this machine's stack, or for URL=<base URL of a deployment> with API_KEY
	@$(PYTHON) -m local studio $(if $(AGENTS),--agents "$(AGENTS)") $(if $(PORT),--port $(PORT)) $(if $(URL),--url "$(URL)")

down: setup  ## Stop; what is stored stays
	@$(PYTHON) -m local down

lint: setup
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright
	.venv/bin/lint-imports --no-cache
	AWS_DEFAULT_REGION=us-east-1 $(SAM) validate --lint
	.local/venvs/sam/bin/cfn-lint template.yaml
	$(PYTHON) -m local.machines
	$(PYTHON) -m threadkeep.http.openapi --check
	$(PYTHON) clients/python/generate_models.py --check

test: lint
	$(PYTHON) -m coverage erase
	$(MAKE) --no-print-directory -j2 --output-sync=target unit contract
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage report
	$(MAKE) --no-print-directory -j2 --output-sync=target stack clients

unit contract:
	$(PYTHON) -m coverage run --parallel-mode -m pytest tests/$@

# Two halves that each deploy what they need: these tests mostly wait.
stack:
	$(PYTHON) -m pytest tests/infra $(sort $(wildcard tests/e2e/test_[a-q]*.py))

clients:
	$(PYTHON) -m pytest $(sort $(wildcard tests/e2e/test_[r-z]*.py)) tests/client tests/browser

mutants: setup  ## Do the tests notice faults in keys, order, pages and owners? GROUPS="keys order" for some of them
	nice -n 10 $(PYTHON) -m tests.mutation $(GROUPS)

bench: setup  ## What do writers that meet cost? Counts requests; docs/benchmarks.md tells how to read it
	$(PYTHON) -m bench.working_memory

openapi: setup  ## Write docs/openapi.json from the route table, and the Python client's models from that
	$(PYTHON) -m threadkeep.http.openapi
	$(PYTHON) clients/python/generate_models.py

deploy: setup  ## Deploy to AWS. CONFIG=dev or prod
	PYTHON=$(CURDIR)/$(PYTHON) $(SAM) build
	$(SAM) deploy --config-env $(or $(CONFIG),dev)
