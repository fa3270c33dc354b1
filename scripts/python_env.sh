#!/usr/bin/env bash
# Makes or refreshes a virtual environment with the package, editable, and its development tools.
#   python_env.sh PYTHON ENV_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt.sh
PYTHON=${1:?python} ENV_DIR=${2:?folder of the environment}

command -v "$PYTHON" >/dev/null || need_package "Python 3.10 or newer" python3 python3-venv
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "Missing: Python 3.10 or newer; '$PYTHON' is $("$PYTHON" -V 2>&1). Name another one: make env PYTHON=python3.12" >&2
    exit 1
}
# Debian splits venv off into a package of its own.
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || need_package "Python's venv module" python3-venv
[ -x "$ENV_DIR/bin/pip" ] || "$PYTHON" -m venv "$ENV_DIR"
"$ENV_DIR/bin/python" -m pip install --disable-pip-version-check --quiet -e '.[dev]'
