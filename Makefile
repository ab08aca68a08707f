# make train | make test | make test-fast | make test-cluster | make mutants | make docs | make dist | make images | make install | make lint |
# make protos | make requirements | make clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# One more than two cores, because some tests wait.
WORKERS ?= 3
CONTAINER_BUILD ?= docker build
TAG ?= $(shell sed -n 's/__version__ = "\(.*\)"/\1/p' actorq/__init__.py)
TORCH_INDEX_URL ?=
# Base of the images, such as python:3.11-slim@sha256:DIGEST. The default is in the Dockerfile.
PYTHON_IMAGE ?=
BASE_ARG = $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE))

# The tests start hundreds of processes. Without cached bytecode, each would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test test-fast test-cluster mutants docs dist images install lint format protos requirements clean

train: $(VENV)/installed  ## install, then train DQN on CartPole; more flags with ARGS="--seed 2"
	$(BIN)/actorq train $(ARGS)

test: $(VENV)/installed lint  ## install, then lint, types and all tests in WORKERS processes; one of them runs the whole training runs
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(ARGS)

test-fast: $(VENV)/installed  ## install, then the fast tests: no whole services, no benchmarks
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m 'not cluster and not slow' $(ARGS)

mutants: $(VENV)/installed  ## change the code in 200 places, one at a time, and check that tests fail; takes hours
	$(BIN)/python -m benchmarks.faults.mutants --check $(ARGS)

test-cluster: $(VENV)/installed  ## install, then the tests on the cluster of KUBECONFIG, which must have the images
	$(BIN)/python -m pytest tests/cluster -m cluster $(ARGS)

docs: $(VENV)/installed  ## install, then build the documentation; open build/site/index.html without a server
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

dist: $(VENV)/installed  ## install, then make the wheel and the sdist in dist/
	$(BIN)/python -m build --no-isolation $(ARGS)

images:  ## build the images of learner, quantizer, actor and operator; CONTAINER_BUILD="podman build", TAG=..., PYTHON_IMAGE=..., TORCH_INDEX_URL=...
	$(CONTAINER_BUILD) --target learner --tag actorq-learner:$(TAG) $(BASE_ARG) --build-arg TORCH_INDEX_URL=$(TORCH_INDEX_URL) .
	$(CONTAINER_BUILD) --target quantizer --tag actorq-quantizer:$(TAG) $(BASE_ARG) .
	$(CONTAINER_BUILD) --target actor --tag actorq-actor:$(TAG) $(BASE_ARG) .
	$(CONTAINER_BUILD) --target operator --tag actorq-operator:$(TAG) $(BASE_ARG) .

install: $(VENV)/installed  ## create .venv with everything that training and the tests need

# Installs again only if the dependencies of the project have changed.
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

requirements: $(VENV)/installed  ## write docker/requirements/: versions and hashes of the images' packages
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(BIN)/python -m sitegen.requirements

# KEDA's .proto file keeps its package name, but its stubs are in ours: protoc gets its folder under another name.
protos: $(VENV)/installed  ## regenerate actorq/v1 and actorq/externalscaler from protos/
	$(BIN)/python -m grpc_tools.protoc --proto_path=actorq/externalscaler=protos/externalscaler --proto_path=protos \
		--python_out=. --pyi_out=. --grpc_python_out=. \
		$(sort $(wildcard protos/actorq/v1/*.proto)) actorq/externalscaler/externalscaler.proto

clean:
	rm -rf $(VENV) build dist *.egg-info
