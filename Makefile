# make train | make test | make install | make lint | make protos | make clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: train test install lint format protos clean

train: $(VENV)/installed  ## install, then train DQN on CartPole; more flags with ARGS="--seed 2"
	$(BIN)/actorq train $(ARGS)

test: $(VENV)/installed lint  ## install, then lint, types and all tests
	$(BIN)/python -m pytest $(ARGS)

install: $(VENV)/installed  ## create .venv with everything that training and the tests need

# Installs again only when the project's own list of dependencies has changed.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "actorq needs Python 3.11 or newer, this is %d.%d: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format --write protos

protos: $(VENV)/installed  ## regenerate actorq/v1 from protos/
	$(BIN)/python -m grpc_tools.protoc --proto_path=protos --python_out=. --pyi_out=. --grpc_python_out=. \
		$(sort $(wildcard protos/actorq/v1/*.proto))

clean:
	rm -rf $(VENV) build *.egg-info
