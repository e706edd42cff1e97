#!/bin/sh
# scripts/check.sh VENV : every check once, against the wheel that is installed in VENV. All are run,
# whatever the earlier ones say; the exit code is 1 if any failed.
set -u
cd "$(dirname "$0")/.."

bin=$1/bin
failed=""

check() {
    name=$1
    shift
    echo
    echo "== $name: $*"
    "$@" || failed="$failed, $name"
}

check lint "$bin/ruff" check .
check format "$bin/ruff" format --check .
check types "$bin/mypy"
check docs "$bin/python" -m phalanx.docs_pages --check
check tests "$bin/python" -m pytest --durations=10

echo
if [ -n "$failed" ]; then
    echo "failed: ${failed#, }"
    exit 1
fi
echo "all checks passed"
