PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: run test check bench flower-versions clean

run: $(INSTALLED)  ## the demonstration: FedAvg and UEFL side by side on scikit-learn's digits
	@rm -rf runs/digits
	@$(BIN)/caveat run --out runs/digits

test: $(INSTALLED)  ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n logical --dist loadfile

check: $(INSTALLED)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)  ## ratios, measured side by side: benchmarks/RESULTS.md
	$(BIN)/python benchmarks/all.py

flower-versions:  ## the transport's tests with the oldest and the newest Flower; 3 GB below .cache
	@PYTHON=$(PYTHON) tests/flower_versions.sh

clean:  ## what the targets above leave behind, environment and demonstration included
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache build src/*.egg-info runs/digits

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
