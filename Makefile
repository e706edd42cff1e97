# What can be made here; `make` lists it. Everything is put into .venv (set up on first use) and
# build/, nowhere else. Another Python: make PYTHON=python3.12 ...

PYTHON ?= python3
VENV := .venv
export PYTHON

.PHONY: help demo test test-long docs bench clean venv

help:
	@echo "make demo       train a small model with four workers, kill one, watch the group go on"
	@echo "make test       every check: lint, types, docs, tests against the built wheel"
	@echo "make test-long  the tests that count, soak and go through matrices"
	@echo "make docs       write the generated pages of docs/ anew"
	@echo "make bench      measure, side by side with torchrun"
	@echo "make clean      remove what was made here"

venv:
	@scripts/venv.sh $(VENV) test lint demo

demo: venv
	@scripts/install-wheel.sh $(VENV)
	@$(VENV)/bin/python examples/demo.py

test: venv
	@scripts/system-packages.sh
	@scripts/install-wheel.sh $(VENV)
	@scripts/check.sh $(VENV)

test-long: venv
	@scripts/system-packages.sh
	@scripts/install-wheel.sh $(VENV)
	@$(VENV)/bin/python -m pytest -m long -rP

docs: venv
	@scripts/install-wheel.sh $(VENV)
	@$(VENV)/bin/python -m phalanx.docs_pages --write

bench: venv
	@scripts/install-wheel.sh $(VENV)
	@$(VENV)/bin/python benchmarks/launch.py
	@$(VENV)/bin/python benchmarks/startup.py
	@$(VENV)/bin/python benchmarks/store.py
	@$(VENV)/bin/python benchmarks/console.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
