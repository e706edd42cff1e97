#!/bin/sh
# scripts/venv.sh VENV EXTRA... : a virtual environment with torch and what the extras name.
# Nothing is done if one is there that was made from the same settings. Uses $PYTHON (python3) and
# pip as this machine has it set up.
set -eu
cd "$(dirname "$0")/.."

venv=$1
shift
python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "phalanx needs Python 3.11 or later; $python is $("$python" -V 2>&1)." >&2
    echo "Name another one: make PYTHON=python3.12 ..." >&2
    exit 1
}
settings=$(cat pyproject.toml scripts/venv.sh | sha256sum | cut -c1-16)
wanted="$settings $torch $* $("$python" -c 'import sys; print(sys.executable, sys.version)')"
if [ -f "$venv/made-for" ] && [ "$(cat "$venv/made-for")" = "$wanted" ]; then
    exit 0
fi

echo "setting up $venv"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# torch by itself and first: what comes after must be content with it.
"$venv/bin/python" -m pip install --quiet --no-input "$torch"
"$venv/bin/python" scripts/requirements.py build-system "$@" >"$venv/requirements.txt"
"$venv/bin/python" -m pip install --quiet --no-input "$torch" -r "$venv/requirements.txt"
echo "$wanted" >"$venv/made-for"
