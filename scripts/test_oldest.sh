#!/usr/bin/env bash
# Install the oldest versions that pyproject.toml allows, and test with them (docs/reliability.md).
#
#     scripts/test_oldest.sh          # the light core, its server and estimator: a minute
#     scripts/test_oldest.sh all      # the whole suite, with torch: several GB and 20 minutes
#
# Only what pyproject.toml names is as old as it allows; what those packages need is the newest that fits.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-light}
case $what in
  light) extra=light-tests tests=(--confcutdir tests/light tests/light) ;;
  all) extra=dev tests=(-n 2 --dist loadfile) ;;
  *) echo "usage: $0 [light|all]" >&2; exit 2 ;;
esac
place=.venv-oldest-$what
${PYTHON:-python3} -m venv --clear "$place"
"$place/bin/python" -m pip install --quiet uv
"$place/bin/uv" pip install --quiet --python "$place/bin/python" --resolution lowest-direct --editable ".[$extra]"
"$place/bin/uv" pip freeze --python "$place/bin/python" --exclude-editable
"$place/bin/python" -m pytest -q "${tests[@]}"
