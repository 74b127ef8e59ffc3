# make demo     set up .venv and train a few methods on embedded data (digits, then four hospitals), with tables and pictures at the end
# make test     set up .venv and pass all tests but those that take long and those over the network
# make slow     pass those that take long: clusters, killed processes, browsers
# make pages    pass those of the docs that take long: commands of pages and cards, the demo's table, the built site in a browser
# make network  pass those over the network: real server and site processes on the loopback network, and attacks on them
# make docs     set up .venv and build the site into site/, without warnings and without network
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
PYTHON ?= python3
# Compiled modules are kept, whatever the environment says: every worker of the tests and every process they start would compile all anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test slow pages network lint docs bench clean

demo: $(READY)
	$(BIN)/fedtailor compare local fedavg fedper fedrep data=digits clients=20 partition.beta=0.1 net=lenet rounds=30 lr=0.1 --out runs/demo
	$(BIN)/fedtailor compare local fedavg fedavg-ft fedrep data=heart rounds=20 --out runs/hospitals

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --ignore=tests/docs

pages: docs
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests/docs

network: $(READY)
	$(BIN)/python -m pytest -m network

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

# Material for MkDocs says at every start that it gets fixes until May 2027; the variable leaves that out.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(READY)
	$(BIN)/python -m bench.rounds

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) runs build dist site
