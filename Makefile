# Two commands on a fresh machine: `make demo` and `make test`. Python 3.10 or later and a JDK (17 or 21, for Spark) are
# all they need; the rest goes into .venv/ here.

PYTHON ?= python3
# Processes that share the tests. Most of the time goes into one Spark session, which is in one of them.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LOWEST := .venv-lowest
LOWEST_INSTALLED := $(LOWEST)/.installed
JAR := ce_nats/spark/jvm/ce-nats.jar

.DEFAULT_GOAL := help
.PHONY: help demo test test-lowest check bench kill docs fmt build jdk clean

help:
	@echo "make demo         publish, consume, capture and explode events on a nats-server and a Spark of its own"
	@echo "make test         all checks and all tests (WORKERS=0: in one process)"
	@echo "make test-lowest  all tests with the oldest versions of dependencies that pyproject.toml allows"
	@echo "make kill         the long run of kills: a streaming job and its server, killed 20 times"
	@echo "make check        ruff and mypy"
	@echo "make bench        the measurements behind docs/speed.md"
	@echo "make docs         the documentation as a site, into site/"
	@echo "make fmt          format the code, renew generated tables"
	@echo "make build        wheel and sdist into dist/"
	@echo "make clean        remove what the others made"

demo: $(INSTALLED) $(JAR)
	@$(BIN)/ce-nats demo

test: check $(JAR)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(PYTEST_ARGS)

test-lowest: $(LOWEST_INSTALLED)
	$(LOWEST)/bin/python -m pytest --numprocesses $(WORKERS) $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED) $(JAR)
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.codec --json benchmarks/codec.json --svg docs/codec.svg
	$(BIN)/python -m benchmarks.codec --floods
	$(BIN)/python -m benchmarks.publish
	$(BIN)/python -m benchmarks.sync
	$(BIN)/python -m benchmarks.source
	$(BIN)/python -m benchmarks.capture
	$(BIN)/python -m benchmarks.arrow
	$(BIN)/python -m benchmarks.spark_columns

kill: $(INSTALLED) $(JAR)
	$(BIN)/python -m benchmarks.kill --kills 20

docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

fmt: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m ce_nats.conformance._tables

build: $(INSTALLED) $(JAR)
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(LOWEST) $(JAR) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse

$(JAR): $(wildcard ce_nats/spark/jvm/*.java) | $(INSTALLED) jdk
	$(BIN)/python hatch_build.py

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "ce_nats needs Python 3.10 or later; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[all]" --group dev
	@touch $@

# The oldest versions with wheels for this Python of what the package and its extras name; everything else is current.
$(LOWEST_INSTALLED): pyproject.toml | jdk
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet "uv>=0.8"
	$(LOWEST)/bin/uv pip compile --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --no-deps \
		--all-extras --only-binary :all: --no-binary pyspark --output-file $(LOWEST)/lowest.txt pyproject.toml
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/lowest.txt \
		--editable ".[all,testing]" --group dev
	@touch $@

jdk:
	@$${JAVA_HOME:+"$$JAVA_HOME/bin/"}javac -version 2>&1 | grep -Eq 'javac (17|21)' \
		|| { echo "Spark needs a JDK, 17 or 21: put java and javac on PATH or set JAVA_HOME"; exit 1; }
