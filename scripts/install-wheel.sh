#!/bin/sh
# scripts/install-wheel.sh VENV : build the wheel from the source as it is now, and install it.
# Always: it takes two seconds, and what is tested is then what was written. Needs no network.
set -eu
cd "$(dirname "$0")/.."

venv=$1
rm -rf build/wheel
"$venv/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --no-index \
    --wheel-dir build/wheel .
"$venv/bin/python" -m pip install --quiet --no-deps --no-index --force-reinstall \
    build/wheel/phalanx-*.whl
