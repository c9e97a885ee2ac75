#!/usr/bin/env bash
# Source distribution, and the wheel built from it, in .cache/package; the wheel in an environment that holds nothing
# else runs what README.md shows. Needs pip's index.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD place=$PWD/.cache/package
rm -rf "$place" && mkdir -p "$place/empty"
"${PYTHON:-python3}" -m venv "$place/venv"
pip="$place/venv/bin/pip --disable-pip-version-check -q"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/caveat/_version.py)
grep -q "^## $version\b" CHANGELOG.md
$pip install 'setuptools>=77'
"$place/venv/bin/python" -c "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])" "$place" >/dev/null
$pip wheel --no-deps -w "$place" "$place/caveat-$version.tar.gz"
$pip install -c constraints.txt "$place/caveat-$version-py3-none-any.whl"
cd "$place/empty"
sed -n '/^```python$/,/^```$/p' "$here/README.md" | sed '/^```/d' >lines.py
"$place/venv/bin/python" -I lines.py
"$place/venv/bin/caveat" run --quiet --out run
test -s run/report.html
"$place/venv/bin/caveat" list methods | grep -q fedavg
test "$("$place/venv/bin/caveat" --version)" = "caveat $version"
cp "$here/examples/unfamiliar.py" .
"$place/venv/bin/python" -I unfamiliar.py
test -s unfamiliar.png
echo "the wheel runs what README.md shows"
