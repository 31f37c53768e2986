#!/usr/bin/env bash
# Sets up .venv and runs the main job on the embedded data set: trains ERM, pAdaIN and SagNet with three seeds each, evaluates
# every epoch on seven sets, and compares them. Minutes on two cores. Stopped, it goes on where it was.
#
#   ./scripts/demo.sh [OUT]      results below OUT (default: out)
set -euo pipefail
out=$(realpath -m "${1:-out}")
. "$(dirname "$0")/environment.sh"

for method in erm padain sagnet; do
  .venv/bin/python -m jaxbed.main --config="configs/$method.py" --workdir="$out/$method"
done
echo
.venv/bin/jaxbed stats "$out/erm" "$out/padain" "$out/sagnet" --baseline ERM --out "$out/stats"
