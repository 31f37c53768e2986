# Sourced by the other scripts: a virtual environment in .venv of the checkout, with jaxbed and the extras named in $EXTRAS.
# Finds a Python of 3.11 or newer, or takes the one in $PYTHON. Installs again only when pyproject.toml or the extras change.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [ ! -x .venv/bin/python ] || ! suits .venv/bin/python; then
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && suits "$candidate" && chosen=$candidate && break
  done
  if [ -z "${chosen:-}" ]; then
    echo "Python 3.11 or newer is needed and none was found. Install it, or name one: PYTHON=/path/to/python $0" >&2
    exit 1
  fi
  if ! "$chosen" -m venv --clear .venv; then
    echo "$chosen cannot make virtual environments: install its venv module (Debian: apt install python3-venv)" >&2
    exit 1
  fi
fi

wanted="$(cksum pyproject.toml) ${EXTRAS:-}"
if [ "$(cat .venv/installed 2>/dev/null)" != "$wanted" ]; then
  echo "installing jaxbed in .venv (1.2 to 1.6 GB, a minute or two)"
  pip=(.venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check)
  jaxbed=(--editable ".${EXTRAS:+[$EXTRAS]}")
  export PYTHONWARNINGS=ignore  # setuptools would warn of every editable installation
  # uv takes less than half of pip's time, but does not read pip's settings: where it finds no index, pip installs
  if ! { "${pip[@]}" uv && .venv/bin/python -m uv pip install --quiet --python .venv/bin/python "${jaxbed[@]}"; } 2>/dev/null; then
    "${pip[@]}" "${jaxbed[@]}"
  fi
  unset PYTHONWARNINGS
  echo "$wanted" > .venv/installed
fi
