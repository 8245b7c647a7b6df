# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint unit bench example evaluation plotly clean debian

demo: $(VENV)/installed
	$(BIN)/fairreplay demo -o reports/demo

test: lint unit

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All of the engine is compiled first, on all cores: else the tests wait for one part after the other.
# The tests of Ray have the machine to themselves: they start a cluster, which ends the process that it cannot serve.
unit: $(VENV)/installed-test debian
	$(BIN)/python -c 'from fairreplay.sandbox.compiled.parts import *; compile_parts(missing(list(PARTS)))'
	$(BIN)/pytest -n 2 --dist loadgroup --max-worker-restart 0 --ignore tests/ray
	$(BIN)/pytest --capture no tests/ray

bench: $(VENV)/installed-test
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The example report that the README shows; its report.json is compared in the tests.
example: $(VENV)/installed
	$(BIN)/fairreplay demo -o build/example --quiet
	mkdir -p reports/example && cp build/example/report.html build/example/report.json reports/example/

# The README's figures on how often the causes are right.
evaluation: $(VENV)/installed
	mkdir -p build
	$(BIN)/fairreplay evaluate --seed 9000 --incidents 200 --jobs 2 --json > build/exact.json
	$(BIN)/fairreplay evaluate --seed 9000 --incidents 200 --jobs 2 --json --sandbox-error 0.2 > build/off.json
	$(BIN)/python docs/evaluation.py build/exact.json build/off.json

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/installed

# Browser tests drive Debian's Chromium and read printed pages with pdftotext; promtool checks the exported metrics.
debian:
	@if command -v chromium >/dev/null && command -v pdftotext >/dev/null && command -v promtool >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium poppler-utils fonts-dejavu-core prometheus; \
	else echo "the tests need: apt-get install chromium poppler-utils prometheus" >&2; exit 1; fi

# The plotly.js of the reports' pages.
PLOTLY_JS := 4.1.1
plotly:
	cd fairreplay/report/plotly && npm pack --silent plotly.js-cartesian-dist-min@$(PLOTLY_JS) \
		&& tar -xzf plotly.js-cartesian-dist-min-$(PLOTLY_JS).tgz --strip-components 1 package/plotly-cartesian.min.js package/LICENSE \
		&& rm plotly.js-cartesian-dist-min-$(PLOTLY_JS).tgz

clean:
	rm -rf $(VENV) build dist *.egg-info reports/demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
