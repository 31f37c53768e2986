#!/usr/bin/env bash
# Sets up .venv, runs style and type checks, builds the documentation, and runs the test suite. Arguments go to pytest.
set -euo pipefail
EXTRAS=dev,docs
. "$(dirname "$0")/environment.sh"
unset PYTHONDONTWRITEBYTECODE  # a hundred processes import the same modules, which installation left to the first of them to compile

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy ${CI:+--cache-dir=/dev/null} & types=$!  # nobody comes back to what it would keep
[ -d tests/__pycache__ ] || .venv/bin/python -m pytest --collect-only -qq > /dev/null & modules=$!  # compiled once, not by both processes below
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet --site-dir "$site"  # seconds; its theme advertises a successor
wait $types
wait $modules || true  # the suite itself says what is wrong
# A file's tests share what is compiled for them; tests/conftest.py says which files come first
.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
