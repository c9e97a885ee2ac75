#!/usr/bin/env bash
# The wheel in an environment that holds nothing else: what README.md shows runs there. Needs pip's index; below .cache.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD place=$PWD/.cache/package
rm -rf "$place" && mkdir -p "$place/empty"
"${PYTHON:-python3}" -m venv "$place/venv"
pip="$place/venv/bin/pip --disable-pip-version-check -q"
$pip wheel --no-deps -w "$place" .
$pip install -c constraints.txt "$place"/caveat-*.whl
cd "$place/empty"
sed -n '/^```python$/,/^```$/p' "$here/README.md" | sed '/^```/d' >lines.py
"$place/venv/bin/python" -I lines.py
"$place/venv/bin/caveat" run --quiet --out run
test -s run/report.html
"$place/venv/bin/caveat" list methods | grep -q fedavg
cp "$here/examples/unfamiliar.py" .
"$place/venv/bin/python" -I unfamiliar.py
test -s unfamiliar.png
echo "the wheel runs what README.md shows"
