PYTHON ?= python3
BIN := .venv/bin
# One process more than processors: tests of federations and of damaged folders wait for clocks and disks.
TESTERS = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
INSTALLED := .venv/.installed
# Bytecode is kept: all processes of tests and of the site import caveat, and torch.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run test bits test-long check docs bench bench-gpu package lowest flower-versions clean

run: $(INSTALLED)  ## the main example: FedAvg and UEFL side by side on scikit-learn's digits
	@rm -rf runs/digits
	@$(BIN)/caveat run --out runs/digits

test: $(INSTALLED)  ## the tests, except the long ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TESTERS) --dist loadfile -m "not long"

bits: $(INSTALLED)  ## record the hashes of results of this machine in tests/bits.json
	OMP_NUM_THREADS=1 PYTHONPATH=tests/helpers $(BIN)/python tests/test_bits.py

test-long: $(INSTALLED)  ## the long tests: federations of processes, the contract for all methods
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TESTERS) --dist loadfile -m long

check: $(INSTALLED)  ## lint, format, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

docs: $(INSTALLED)  ## the site: build/site/index.html; warnings are errors
	@rm -rf build/site
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -j auto -q -W --keep-going -d build/doctrees docs build/site
	$(BIN)/python docs/check_site.py build/site

bench: $(INSTALLED)  ## ratios, measured side by side: benchmarks/RESULTS.md
	$(BIN)/python benchmarks/all.py

bench-gpu: $(INSTALLED)  ## speed on a GPU against a bare loop, other libraries, and the tables of the papers; hours
	$(BIN)/python benchmarks/gpu.py --device $(or $(DEVICE),cuda) $(if $(CAVEAT_DATA),--data $(CAVEAT_DATA))

package:  ## sdist and wheel in .cache/package; run the README's code with the wheel in a new environment
	@PYTHON=$(PYTHON) tests/package.sh

LOWEST := .cache/lowest
TORCH = $(shell sed -n 's/^torch==//p' constraints.txt)
# Flower asks for later versions of much, so its tests stay out; so do four for newer NumPy, scikit-learn and Pillow.
FLOWERS = $(shell grep -rlE '^(from|import) [a-z_.]*(flwr|flower|hospitals|secure_silos|federation[. ])' tests --include='test_*.py') tests/faults
NEWER = errors_on_the_grid or bins_hardly_change or figures_against_scikit_learn or several_frames_are or picture_shows

lowest:  ## the tests with the lowest versions in pyproject.toml, without Flower; torch as tested, or TORCH=2.4.0
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
		ranges = project['dependencies'] + project['optional-dependencies']['privacy']; \
		lowest = [each.replace('>=', '==') for each in ranges if not each.startswith('torch')]; \
		print('torch==$(TORCH)', *lowest, sep='\n')" >$(LOWEST)/lowest.txt
	grep -E '^(click|hypothesis|mpmath|normflows|pytest|pytest-xdist)==' constraints.txt >>$(LOWEST)/lowest.txt
	$(LOWEST)/bin/pip install -q --disable-pip-version-check -r $(LOWEST)/lowest.txt -e .
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -n logical --dist loadfile \
		-k 'not ($(NEWER))' $(addprefix --ignore=,$(FLOWERS))

flower-versions:  ## the transport's tests with the oldest and the newest Flower; 3 GB below .cache
	@PYTHON=$(PYTHON) tests/flower_versions.sh

clean:  ## what the targets above leave behind, environment and demonstration included
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache build src/*.egg-info runs/digits docs/gallery \
		docs/reference/api docs/reference/cli.md docs/reference/config.md

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
