# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo demo-autoscale test test-envoy-matrix test-churn test-oldest check audit format protos bench-overhead bench-pick bench-routing bench-autoscale bench-scaling docs docs-serve clean

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/' | expand -t 22

install: $(STAMP) ## make .venv and install the project into it

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and "extproc needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.12 ..." % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)   ## real Envoy, the service, four simulated servers, traffic (CHECK=1: unattended, exits 0 if all is right)
	$(BIN)/extproc demo $(if $(CHECK),--check)

demo-autoscale: $(STAMP) ## servers start cold and go as the load rises and falls; three minutes (CHECK=1 as above)
	$(BIN)/extproc demo --autoscale $(if $(CHECK),--check)

test: $(STAMP)   ## all tests, those with real Envoy included
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

test-envoy-matrix: $(STAMP) ## the real-Envoy tests on every supported Envoy branch
	$(BIN)/python -m pytest -n 2 --dist worksteal -m envoy --envoy-versions=all $(PYTEST_ARGS)

test-churn: $(STAMP) ## servers and the service come and go under streams, 30 events in three minutes (bench/out/churn.json)
	$(BIN)/python -m tests.churn $(CHURN_ARGS)

OLDEST := .venv-oldest
test-oldest:     ## the tests without Envoy, on the oldest dependencies that pyproject.toml allows
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m tests.support.oldest > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt \
	  --editable '.[demo,report,kubernetes,dns,autoscale]' grpcio hypothesis jsonschema kubernetes-validate pip-audit pytest pytest-asyncio PyYAML zstandard
	$(OLDEST)/bin/python -m pytest -m 'not envoy' --deselect tests/test_protos.py::test_generating_again_gives_the_same_bytes \
	  -W "ignore:'click.utils:DeprecationWarning" $(PYTEST_ARGS)

check: $(STAMP) docs ## format, lint, types, import contracts, the documentation's links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without --quiet, which takes the warnings away before --strict can count them.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMP)   ## the documentation as a site, in site/; a dead link is an error
	$(BIN)/mkdocs build --strict

docs-serve: export NO_MKDOCS_2_WARNING = 1
docs-serve: $(STAMP) ## the same on http://127.0.0.1:8000, while you write
	$(BIN)/mkdocs serve

audit: $(STAMP)  ## known vulnerabilities of what is installed (exits 0 where no advisory database can be asked)
	$(BIN)/python .ci/audit.py

format: $(STAMP) ## bring the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: $(STAMP) ## generate extproc/pb from protos/
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. protos/extproc/pb/*.proto

bench-overhead: $(STAMP) ## what the service costs, beside Envoy alone and other routers (bench/out/overhead.json)
	$(BIN)/python -m bench.overhead $(BENCH_ARGS)

bench-routing: $(STAMP) ## time to first token over ten workloads, beside Envoy's policies and other routers (about 2.3 hours)
	$(BIN)/python -m bench.routing $(BENCH_ARGS)

bench-pick: $(STAMP) ## what a pick costs by its parts, and what the index weighs (bench/out/pick.json)
	$(BIN)/python -m bench.pick $(BENCH_ARGS)

bench-scaling: $(STAMP) ## from 4 to 8 to 4 servers in virtual time: hit rate and time to first token (docs/benchmarks/scaling.md)
	$(BIN)/python -m bench.scaling $(BENCH_ARGS)

bench-autoscale: $(STAMP) ## a fleet that follows its load by each rule, in virtual time (bench/out/autoscale.json)
	$(BIN)/python -m bench.autoscale $(BENCH_ARGS)

clean:           ## remove what the other targets made
	rm -rf $(VENV) .venv-* bench/out site .mypy_cache .ruff_cache .pytest_cache .hypothesis
