#!/usr/bin/env bash
# Sets up .venv and runs style and type checks and the test suite. Arguments go to pytest.
set -euo pipefail
EXTRAS=dev
. "$(dirname "$0")/environment.sh"

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python -m pytest -n 2 --dist loadfile "$@"  # a file's tests share what is compiled for them
