# One command each, the same on a laptop and in CI. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Spark needs Java 17 even where another `java` comes first on the path.
WITH_JAVA = JAVA_HOME="$$(scripts/java_check.sh)" && export JAVA_HOME
# Three workers, also on two cores: many tests wait for a server or a process. Each has a Spark of its own, about 1.5 GB.
WORKERS ?= 3
PYTEST_ARGS ?=

.PHONY: help env demo test prove check format clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

env: $(VENV)/.installed ## make .venv with the package and its tools (again only when pyproject.toml changed)

$(VENV)/.installed: pyproject.toml
	scripts/python_env.sh "$(PYTHON)" $(VENV)
	@touch $@

demo: env ## two days of raw files into SQLite and Parquet: append, merge, scd2, and what was run
	@$(WITH_JAVA) && $(BIN)/flow jars fetch && $(BIN)/python scripts/start_archive.py && $(BIN)/python demo/run.py

test: env ## everything, against real servers; as root on Debian it installs the missing ones
	scripts/test_services.sh $(BIN)/python
	$(WITH_JAVA) && $(BIN)/flow jars fetch avro delta hadoop-aws iceberg kafka postgresql && $(BIN)/python scripts/start_archive.py
	$(WITH_JAVA) && $(BIN)/python -m pytest -q -m alone $(PYTEST_ARGS)
	$(WITH_JAVA) && $(BIN)/python -m pytest -q -m "not alone" -n $(WORKERS) --dist loadgroup --durations=40 $(PYTEST_ARGS)

prove: env ## the long proofs: every kill point, clusters, Spark Connect, the native engine, a 20-million-row load, start-up against plain PySpark
	EMATIX_PROVE=1 scripts/test_services.sh $(BIN)/python
	$(WITH_JAVA) && $(BIN)/flow jars fetch --all && $(BIN)/python scripts/start_archive.py
	$(WITH_JAVA) && EMATIX_PROVE=1 $(BIN)/python -m pytest -q tests/crash -n $(WORKERS)
	$(WITH_JAVA) && EMATIX_PROVE=1 $(BIN)/python -m pytest -q tests/spark/test_places.py
	$(BIN)/python proofs/native.py
	$(WITH_JAVA) && EMATIX_PROVE=1 $(BIN)/python -m pytest -q tests/backends/test_files_contract.py -k "S3 or Gcs or Azure" -n $(WORKERS)
	$(WITH_JAVA) && EMATIX_PROVE=1 $(BIN)/python -m pytest -q tests/backends/test_files_gcs.py tests/backends/test_files_azure.py
	$(BIN)/python -m tests.services.minio fetch
	$(WITH_JAVA) && EMATIX_PROVE=1 EMATIX_TEST_S3=minio $(BIN)/python -m pytest -q tests/backends/test_files_s3.py tests/backends/test_lake_s3.py tests/crash/test_lake_s3_kill.py -k "not only_read and not second_login"
	$(WITH_JAVA) && EMATIX_PROVE=1 EMATIX_TEST_S3=minio $(BIN)/python -m pytest -q tests/backends/test_files_contract.py -k S3 -n $(WORKERS)
	$(WITH_JAVA) && EMATIX_PROVE=only $(BIN)/python -m pytest -q tests/backends tests/plan tests/run tests/spark tests/orchestrate tests/stream -n $(WORKERS) --dist loadgroup
	$(WITH_JAVA) && EMATIX_PROVE=1 $(BIN)/python -m pytest -q tests/test_core.py -k "goes_away or kinesis_batches"
	$(WITH_JAVA) && $(BIN)/python proofs/big_load.py
	$(WITH_JAVA) && $(BIN)/python benchmarks/startup.py

check: env ## format, lint, types, and the rules of the house; no server, no Spark
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(BIN)/python -m pytest -q tests/test_house.py tests/test_front_door.py

format: env ## put the code into the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
