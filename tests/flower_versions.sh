#!/usr/bin/env bash
# The transport's tests with the oldest Flower that pyproject.toml admits, and with the newest that can be installed:
# an environment for each below .cache/flower, with the newest of nearly all else.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=$(sed -nE 's/^flower = \["flwr>=([0-9.]+),.*/\1/p' pyproject.toml)
# The default torch may bring gigabytes of CUDA; the typer that Flower asks for warns with a newer click.
mapfile -t pinned < <(grep -E '^(click|torch)==' constraints.txt)

try() {
    local bin=".cache/flower/$1/bin"
    [ -x "$bin/pip" ] || "${PYTHON:-python3}" -m venv ".cache/flower/$1"
    "$bin/pip" install -qq --disable-pip-version-check --upgrade -e '.[flower]' "$2" "${pinned[@]}" pytest
    echo "$1: $("$bin/pip" freeze | grep '^flwr==')"
    "$bin/python" -m pytest -q -p no:cacheprovider tests/engines/test_flower.py tests/engines/test_update_checks.py \
        tests/federation
}

try oldest "flwr==$oldest.*"
try newest flwr
