# Needs Python 3.11 or later, git and make; everything else goes into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check
TORCH  := $(shell grep '^torch==' constraints.txt)

.PHONY: help demo results stale check test torture fuzz lint format bench bench-peers docs wheel-test lock clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /' | awk -F': ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.installed  ## compare five methods on skewed digits, over three seeds: tables, a picture, a report
	$(BIN)/arno compare method=fedavg,lorenzo,fedprox,scaffold,fedvarp fedprox.mu=0.1 lorenzo.participation=1 \
	  lorenzo.patience=null data=digits partition=dirichlet partition.alpha=0.1 seed=0..2 clients=30 participation=0.3 \
	  rounds=40 local.epochs=5 local.batch_size=16 local.lr=0.1 local.weight_decay=0 target=0.9 out=demo
	@$(BIN)/arno data show data=digits partition=dirichlet partition.alpha=0.1 clients=30 --out demo/clients.png > demo/clients.txt
	@echo "who holds what (seed 0): demo/clients.png, clients.txt"

results: $(VENV)/.dev  ## make results NAME=skew: run a study of benchmarks/studies, write docs/results/NAME.md
	$(BIN)/python benchmarks/results.py $(NAME) $(ARGS)

stale: $(VENV)/.dev  ## name the pages of docs/results that are older than the sources of their numbers
	$(BIN)/python benchmarks/stale.py

check: lint  ## lint, types, laws and units, in less than a minute: after every edit
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m 'not slow' tests/laws tests/kernels tests/unit

test: lint  ## lint, type check and tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

torture: $(VENV)/.dev  ## kill, damage, fill and double everything that Arno writes, 1,600 times; ARGS= for more
	OMP_NUM_THREADS=1 $(BIN)/python tests/torture/torture.py $(ARGS)

fuzz: $(VENV)/.dev  ## read 11,000 hostile inputs of every kind; ARGS= for more
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py $(ARGS)

lint: $(VENV)/.dev  ## format, lint and type check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## run every benchmark and print what it measures
	@for file in $(filter-out $(addprefix benchmarks/, cells.py figure_cells.py results.py stale.py bits.py releases.py), $(wildcard benchmarks/*.py)) benchmarks/speed/run.py; do \
	  echo "== $$file"; $(BIN)/python $$file || exit 1; done

PEERS := flower pfl fedlab blazefl
bench-peers: $(VENV)/.dev $(PEERS:%=.peers/%/.installed)  ## Arno, a hand-written loop and the peers on the same work; ARGS= for more
	$(BIN)/python benchmarks/speed/run.py --peers .peers $(ARGS)

# Each peer in an environment of its own, with the versions that were measured. BlazeFL's metadata ask for Python 3.12;
# its source runs with 3.11, so that all contenders have one interpreter and one build of torch.
.peers/%/.installed: benchmarks/speed/peers/%.txt
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	.peers/$*/bin/pip install --quiet --disable-pip-version-check --no-deps $(if $(filter blazefl,$*),--ignore-requires-python) -r $<
	@touch $@

docs: $(VENV)/.docs  ## build the documentation into site/
	$(BIN)/python tools/pages.py
	$(BIN)/zensical build --strict --clean --config-file build/mkdocs.yml
	rm -rf site && mv build/site site

wheel-test: $(VENV)/.dev  ## build a wheel, install it into an empty environment and use it there
	$(BIN)/python tools/wheel_test.py

lock: $(VENV)/.dev  ## write requirements/*.txt, the digests of what make installs, after a change of versions
	$(BIN)/python tools/lock.py

clean:  ## remove what make made
	rm -rf $(VENV) .peers site demo build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"error: Python {v[0]}.{v[1]}: Arno needs 3.11 or later; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# What a lock file covers is installed from it, each wheel verified by its digest; elsewhere by version only.
# torch alone: where a build of this version is at hand (a CPU wheel, say), pip takes that one.
LOCKED = $(PIP) --require-hashes --no-deps --only-binary :all: -r requirements/$(1).txt
COVERED = $(BIN)/python tools/lock.py --covers $(1)

$(VENV)/.installed: pyproject.toml constraints.txt requirements/core.txt | $(VENV)/bin/python
	if $(call COVERED,core); then $(call LOCKED,core); else $(PIP) -c constraints.txt $(TORCH) setuptools; fi
	$(PIP) -c constraints.txt $(TORCH)
	if $(call COVERED,core); then $(PIP) --no-deps --no-build-isolation -e .; else $(PIP) -c constraints.txt -e .; fi
	@touch $@

$(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: $(VENV)/.installed requirements/%.txt
	if $(call COVERED,$*); then $(call LOCKED,$*); else $(PIP) -c constraints.txt -e '.[$*]'; fi
	@touch $@
