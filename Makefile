# `make demo` and `make test` need nothing but Python 3.11+ and the network: they make .venv and see to Java.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

# Of what is tried by chance in `test-all`, `bench` and `fresh`; another one each time. To try the same: make fresh SEED=…
SEED := $(shell date +%s)

comma := ,

.DEFAULT_GOAL := help
.PHONY: help demo demo-stream demo-kafka test test-all test-versions fresh mutants bench build lint format docs site java clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo java ## Real flights, joined and windowed on Spark: a table and a picture.
	$(BIN)/arcbeam run examples/flight_delays.py

demo-stream: $(VENV)/.demo java ## The same flights as a stream whose driver is killed half-way; under three minutes.
	$(BIN)/python examples/flight_stream.py

demo-kafka: $(VENV)/.dev java ## The flights through Kafka to Kafka, driver killed half-way: each arrives once; two minutes; needs Maven (mvn).
	$(BIN)/python tools/kafka/demo.py

test: $(VENV)/.dev java ## All tests but the long ones.
	$(BIN)/python tools/run_tests.py -m "not long"

test-all: $(VENV)/.dev java ## All tests, the long ones too, with new random examples.
	$(BIN)/python tools/run_tests.py --hypothesis-seed=$(SEED)
	$(SIMULATE_NEW)

test-versions: $(VENV)/.dev java ## A smoke set with each Beam, PySpark and Python, and upgrades of jobs, in environments below build/.
	$(BIN)/python tools/test_versions.py

fresh: $(VENV)/.dev ## New random examples and simulations; SEED=… tries those of a seed again.
	$(BIN)/python -m pytest -m "hypothesis and not spark" --hypothesis-seed=$(SEED)
	$(SIMULATE_NEW)

mutants: $(VENV)/.dev java ## Small mistakes in each package, which its tests must find; hours; PACKAGE=… one package, SEED=… another sample.
	$(BIN)/python -m tools.mutation $(if $(filter command% environment,$(origin SEED)),--seed $(SEED)) $(PACKAGE)

SIMULATE_NEW = $(BIN)/python -m simulator --seeds $(SEED)..$$(($(SEED) + 299))

bench: $(VENV)/.dev java ## Measure against hand-written PySpark, Structured Streaming, Beam's local runner and Prism; FULL=1: more and longer.
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/bench/small.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/kafka.py
	$(BIN)/python benchmarks/sdks.py $(if $(FULL),,--runs 1)
	$(BIN)/python benchmarks/driver.py --shards $(if $(FULL),128$(comma)1024,128)
	$(BIN)/python benchmarks/bench/streaming/manytasks.py --tasks $(if $(FULL),8$(comma)64$(comma)256,8$(comma)64)
	$(BIN)/python benchmarks/microbatchtime.py --warm 200 --micro-batches 400
	$(BIN)/python benchmarks/microbatchtime.py --warm 200 --micro-batches 400 --shards 2
	$(BIN)/python benchmarks/idle.py --warm 200 --seconds $(if $(FULL),300,120)
	$(BIN)/python benchmarks/manykeys.py --seed --keys 100000,$(if $(FULL),10000000,1000000) --micro-batches $(if $(FULL),60,30)
	$(BIN)/python benchmarks/page.py $(if $(FULL),,--stages 60 --ended 200)
	$(MAKE) --no-print-directory fresh SEED=$(SEED)

build: $(VENV)/.dev java ## The source archive and the wheel in dist/, checked, and the wheel tried in a new environment.
	$(BIN)/python tools/build.py

lint: $(VENV)/.dev ## Style, types, layers, generated documents.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/python tools/check_house.py
	$(BIN)/python tools/check_docs.py
	$(BIN)/python tools/check_pages.py
	$(BIN)/python tools/check_words.py
	$(BIN)/python tools/features.py --check
	$(BIN)/python tools/reference.py --check
	$(BIN)/python -m tools.generators.packages --check
	$(BIN)/python -m tools.mutation.equivalents --check
	$(BIN)/python -m tools.generators.formats --check
	$(BIN)/python tools/time_pictures.py --check

format: $(VENV)/.dev ## Format the sources.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## Generate the pages of features, options, commands, the Python API, packages and mutants, and the pictures.
	$(BIN)/python tools/features.py
	$(BIN)/python tools/reference.py
	$(BIN)/python -m tools.generators.packages
	$(BIN)/python -m tools.mutation.equivalents
	$(BIN)/python tools/time_pictures.py

site: $(VENV)/.docs ## The documents as a site, in build/site; a broken link or anchor fails.
	$(BIN)/zensical build --strict

clean: ## Remove what was built, but not .venv.
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis spark-warehouse

java:
	@tools/ensure_java.sh

# Stamps: done once, and again when pyproject.toml changes. The dev set holds the demo's, so it satisfies both.
$(VENV)/.demo: pyproject.toml
	tools/ensure_venv.sh $(VENV) $(PYTHON)
	$(PIP) install -q -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	tools/ensure_venv.sh $(VENV) $(PYTHON)
	$(PIP) install -q -e '.[dev]'
	@touch $(VENV)/.demo $@

$(VENV)/.docs: pyproject.toml
	tools/ensure_venv.sh $(VENV) $(PYTHON)
	$(PIP) install -q -e '.[docs]'
	@touch $@
