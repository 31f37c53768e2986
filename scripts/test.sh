#!/usr/bin/env bash
# Sets up .venv, runs style and type checks, builds the documentation, and runs the test suite. Arguments go to pytest.
set -euo pipefail
EXTRAS=dev,docs
. "$(dirname "$0")/environment.sh"
unset PYTHONDONTWRITEBYTECODE  # a hundred processes import the same modules, which pip left to the first of them to compile

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy ${CI:+--cache-dir=/dev/null} &  # nobody comes back to what it would keep
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet --site-dir "$site"  # seconds; its theme advertises a successor
wait $!
# A file's tests share what is compiled for them; tests/conftest.py says which files come first
.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
