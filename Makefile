# Every target sets up what it needs: `make test` works from an empty clone.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PEERS := .venv-peers
# Each program has the name of its Debian package.
PROGRAMS := qbittorrent-nox chromium pgbouncer
MISSING = $(strip $(foreach program,$(PROGRAMS),$(if $(shell PATH=$$PATH:/usr/sbin command -v $(program) 2> /dev/null),,$(program))))
# The newest installed Python, and the tests that are most likely to fail on it.
NEWEST = $(shell .ci/newest $(PYTHON))
CORE := tests/pure tests/contract tests/loops/test_handlers.py tests/loops/test_stages.py tests/loops/test_worker_states.py tests/surface/test_app.py tests/surface/test_app_operate.py \
  tests/crash/test_exit.py tests/crash/test_forks.py
# Tests that mostly wait for other processes run in parallel with the rest. The rest run with a lower priority (nice),
# so that a busy machine delays no lease. pytest exits with 5 if ARGS selects no test of a group.
WAITING := tests/crash tests/surface/test_cli_worker.py tests/surface/test_cli_worker_life.py tests/surface/test_demo.py tests/surface/test_studio_page.py \
  tests/surface/test_courier_page.py tests/surface/test_librarian_page.py apps/courier/tests/test_worker_crashes.py \
  apps/courier/tests/test_end_to_end.py apps/courier/tests/test_cli_processes.py \
  apps/studio/tests/test_killed_processes.py
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

# The suite starts hundreds of processes. Without cached bytecode, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check test test-newest test-real system demo bench bench-against bench-peers chaos chaos-limits mutants lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1m%-13s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the pinned dependencies and this package (editable)

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Interlock needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

check: $(STAMP) ## Run the linter, formatter, vocabulary check, both type checkers and the check of import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/python tools/check_vocabulary.py
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports

test: $(STAMP) ## Run all tests that need only wheels (ARGS="-k lease -x" passes options to pytest)
	@echo "$(BIN)/pytest $(WAITING) -n 4, in parallel with the others; its output follows theirs"
	@$(BIN)/pytest $(WAITING) -m "not real" -n 4 --dist worksteal $(ARGS) > $(VENV)/waiting.log 2>&1 & waiting=$$!; \
	trap 'kill $$waiting' INT TERM; \
	nice -n 10 $(BIN)/pytest tests apps $(addprefix --ignore=,$(WAITING)) -m "not real" -n 3 --dist worksteal $(ARGS); others=$$?; \
	wait $$waiting; waiting=$$?; cat $(VENV)/waiting.log; \
	for code in $$others $$waiting; do test $$code = 0 || test $$code = 5 || exit $$code; done

test-newest: ## Run the core of the suite on the newest installed Python, if it is newer (NEWEST=python3.14 chooses one)
	@test -n "$(NEWEST)" || echo "No Python newer than $(PYTHON) is installed: nothing to test."
	@test -z "$(NEWEST)" || $(MAKE) --no-print-directory .venv-newest/.stamp PYTHON="$(NEWEST)" VENV=.venv-newest
	@test -z "$(NEWEST)" || .venv-newest/bin/pytest $(CORE) -n 2 -p no:cacheprovider $(ARGS)

test-real: $(STAMP) ## Run the tests that need real external programs; run `make system` first
	@test -z "$(MISSING)" || { echo "$(firstword $(MISSING)) is not installed: run make system first."; exit 1; }
	$(BIN)/pytest tests apps -m real $(ARGS)

system: ## Install the system packages that test-real needs
	@test -z "$(MISSING)" || { $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -y -qq --no-install-recommends $(MISSING); }

demo: $(STAMP) ## Kill and freeze workers and count the results, in under a minute (ARGS=--postgres)
	$(BIN)/interlock demo $(ARGS)

bench: $(STAMP) ## Measure throughput and database CPU per job on both stores
	$(BIN)/python -m benchmarks $(ARGS)

bench-against: $(STAMP) ## Compare the cost of plain jobs with that of another revision (ARGS=REVISION)
	$(BIN)/python -m benchmarks.against $(ARGS)

bench-peers: $(STAMP) $(PEERS)/.stamp ## Compare with other job systems in one run; needs Node 20 (ARGS="--quick --only drain,enqueue")
	$(BIN)/python -m benchmarks.peers $(ARGS)

$(PEERS)/.stamp: benchmarks/peers/requirements.txt benchmarks/peers/package-lock.json
	@command -v npm > /dev/null || { echo "npm is not installed: install Node 20 first."; exit 1; }
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	npm ci --silent --ignore-scripts --prefix benchmarks/peers
	@touch $@

chaos: $(STAMP) ## Kill workers at random and count lost and duplicated jobs (ARGS="--kills 50 --store sqlite")
	$(BIN)/python -m tests.crash.chaos $(ARGS)

chaos-limits: $(STAMP) ## Kill workers at random and compare the database's stamps with limits, rates and pauses
	$(BIN)/python -m tests.crash.limits_chaos $(ARGS)

mutants: $(STAMP) ## Break one guarantee at a time and check that a test fails (ARGS=fence selects by name)
	$(BIN)/python -m tests.mutants $(ARGS)

# pip's local settings are ignored, so that the hashes come from the public registry. Run it with the oldest supported Python.
lock: ## Regenerate requirements/dev.txt from dev.in (ARGS=--upgrade updates all versions)
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/pip install --quiet --disable-pip-version-check pip-tools==7.6.2
	env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" .venv/lock/bin/pip-compile --quiet \
	  --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  $(ARGS) --output-file requirements/dev.txt requirements/dev.in

clean: ## Remove .venv and all generated files
	rm -rf .venv .venv-newest $(PEERS) benchmarks/peers/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests apps benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
