# Everything runs in .venv, which the first target that needs it makes. Python 3.11, pip and gcc are all it asks for.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo test slow sweep zoo lint bench profiles matrix upgrades evaluations clean

help:
	@echo "make demo    run the main job against a released transformers"
	@echo "make test    the tests, without slow ones and without other projects' trainers"
	@echo "make slow    the slow tests, and those that install other projects' trainers"
	@echo "make zoo     trainers with planted faults, and healthy ones, and what the oracle says of them"
	@echo "make sweep   resumes at every cut and kills in every save, which take most of an hour"
	@echo "make lint    ruff, mypy and import-linter"
	@echo "make profiles  the profiles of docs/trainers/profiles"
	@echo "make matrix  every trainer on every task under every recipe: docs/trainers/matrix.md"
	@echo "make upgrades  what changes between released versions: docs/trainers/upgrades.md"
	@echo "make evaluations  trainers evaluated for a scenario: docs/evaluations"
	@echo "make bench   the figures of docs/performance.md"
	@echo "make clean   remove .venv and what was built"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# transformers 4.54.0 divides the short last window of an epoch by the configured accumulation. Exit code 1 (diverged) is
# what must come back, with that cause confirmed.
demo: $(STAMP)
	@mkdir -p build
	@$(BIN)/oracle check ragged_tail --trainer transformers --with 'transformers==4.54.0' --json build/demo.json; \
	    code=$$?; $(BIN)/python tests/demo.py build/demo.json $$code

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m '(slow or trainers) and not sweep' --timeout 1200

sweep: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m sweep --timeout 3600

zoo: $(STAMP)
	$(BIN)/oracle zoo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks

profiles: $(STAMP)
	$(BIN)/python -m oracle.profile docs/trainers/profiles

matrix: $(STAMP)
	$(BIN)/python -m oracle.matrix docs/trainers

upgrades: $(STAMP)
	$(BIN)/python -m benchmarks.upgrades

evaluations: $(STAMP)
	$(BIN)/python -m oracle.evaluate docs/evaluations

clean:
	rm -rf .venv build dist *.egg-info
