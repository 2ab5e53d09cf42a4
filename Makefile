# Everything runs in .venv, made here; nothing global is touched.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo test test-slow test-browser drill fuzz check docs docs-serve bench dist clean

help:
	@echo "make demo       set up, then synthetic data of three invented hospitals, with a report"
	@echo "make test       set up, then the tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-browser  the pages in a real browser (needs chromium; POPULACE_SCREENSHOTS=FOLDER keeps pictures)"
	@echo "make drill      a federation on loopback under kills, stops, wrong clocks, full disks, bad lines and liars (SECONDS=3600 SEED=1 SITES=5 OUT=FILE)"
	@echo "make fuzz       damaged files, messages, requests and options, 100,000 of them (CASES=, SEED=); findings in fuzz-findings"
	@echo "make check      lint, format, types, import rules"
	@echo "make docs       the documentation site in site/, strict, without anything from elsewhere; open site/index.html"
	@echo "make docs-serve the same on http://127.0.0.1:8000, built again when a page changes"
	@echo "make dist       wheel, sources and a bill of materials (CycloneDX) in dist/, the same bytes each time"
	@echo "make bench      speed, as ratios in one run (benchmarks.evaluation and benchmarks.poll need POPULACE_DATA)"

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("populace needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

demo: $(READY)
	$(BIN)/populace demo

# Three processes for two cores: some wait for servers. In the order that tests/conftest.py gives the files: the longest begin early.
# What they and their children import is compiled once, also where the environment says that Python keeps nothing.
test test-slow: export PYTHONDONTWRITEBYTECODE =
test: $(READY)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Those compute much: code that runs fast. The browser has its own target.
test-slow: $(READY)
	XLA_FLAGS= $(BIN)/python -m pytest -m slow --ignore tests/browser

test-browser: $(READY)
	XLA_FLAGS= POPULACE_REQUIRE_BROWSER=1 $(BIN)/python -m pytest -m slow tests/browser

# For maintainers. Bounded: SECONDS, and what the last run needs to end; one temporary folder, kept where something is wrong.
SECONDS ?= 3600
SEED ?= 1
SITES ?= 5
drill: $(READY)
	$(BIN)/python -m tests.drill --seconds $(SECONDS) --seed $(SEED) --sites $(SITES) $(if $(OUT),--out $(OUT))

CASES ?= 100000
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Material announces the next MkDocs on every build; this is no warning about the site.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)
	$(BIN)/mkdocs build --strict
	$(BIN)/python tools/check_site.py site

docs-serve: $(READY)
	$(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8000

bench: $(READY)
	$(BIN)/python -m benchmarks.simulation
	$(BIN)/python -m benchmarks.oracles
	$(BIN)/python -m benchmarks.gaussian
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.census_counting
	$(BIN)/python -m benchmarks.secure_sum
	$(BIN)/python -m benchmarks.vae
	$(BIN)/python -m benchmarks.wae
	$(BIN)/python -m benchmarks.federation
	$(BIN)/python -m benchmarks.site_answers
	$(BIN)/python -m benchmarks.collector

# The time that archives carry is that of the last commit, so that the same tree gives the same bytes.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1700000000)
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist
	$(BIN)/python tools/sbom.py --out dist

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .jax_cache .import_linter_cache demo-run demo-run-* demo-federation fuzz-findings site
