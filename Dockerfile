# Images of the three services and of the operator: docker build --target learner|quantizer|actor|operator. `make images`
# builds all of them.
#
# The base is PYTHON_IMAGE, which may have a digest (docs/reference/images.md). Packages come from pip's configured index.
# pip checks them against the hashes of docker/requirements (`make requirements` writes these). constraints.txt sets the
# version of PyTorch. TORCH_INDEX_URL adds a package index for the learner, such as PyTorch's index for CPUs or for one
# version of CUDA (docs/how-to/kubernetes.md).
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
# A virtual environment, because the images can copy it as a whole. It has no pip, because the images need none.
RUN python -m venv --without-pip /opt/actorq
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY docker/install /usr/local/bin/install-actorq
COPY docker/requirements docker/requirements/
# The smallest package that pip can install. Dependencies get a separate layer, which is cached until they change.
COPY actorq/__init__.py actorq/

FROM build AS build-learner
ARG TORCH_INDEX_URL=""
# Experiment trackers of the learner, such as mlflow,wandb (docs/how-to/monitor.md).
ARG TRACKERS=""
RUN install-actorq "learner,s3${TRACKERS:+,$TRACKERS}"
COPY actorq actorq
COPY learner_service learner_service
RUN install-actorq learner_service

FROM build AS build-quantizer
RUN install-actorq quantizer
COPY actorq actorq
COPY quantizer_service quantizer_service
RUN install-actorq quantizer_service

FROM build AS build-actor
# Environments besides classic control, such as box2d,mujoco,dm-control,atari,envpool (docs/how-to/environments.md).
ARG ENVIRONMENTS="box2d,mujoco"
RUN install-actorq "actor${ENVIRONMENTS:+,$ENVIRONMENTS}"
COPY actorq actorq
COPY actor_service actor_service
RUN install-actorq actor_service

FROM build AS build-operator
RUN install-actorq operator
COPY actorq actorq
COPY actorq_apps actorq_apps
RUN install-actorq actorq_apps.operator

FROM ${PYTHON_IMAGE} AS service
# A number, so that Kubernetes can check that the user is not root. Services write only to volumes and /tmp.
USER 10001:10001
WORKDIR /tmp
ENV PATH=/opt/actorq/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
STOPSIGNAL SIGTERM
ARG PYTHON_IMAGE
LABEL org.opencontainers.image.version="0.1.0" org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.base.name="${PYTHON_IMAGE}"

FROM service AS learner
COPY --from=build-learner /opt/actorq /opt/actorq
EXPOSE 50051 9090
ENTRYPOINT ["python", "-m", "learner_service"]

FROM service AS quantizer
COPY --from=build-quantizer /opt/actorq /opt/actorq
EXPOSE 50052 9090
ENTRYPOINT ["python", "-m", "quantizer_service"]

FROM service AS actor
COPY --from=build-actor /opt/actorq /opt/actorq
EXPOSE 50053 9090
ENTRYPOINT ["python", "-m", "actor_service"]

FROM service AS operator
COPY --from=build-operator /opt/actorq /opt/actorq
# Manifests of runs, for actorq_apps/operator/render.py.
COPY k8s/base /opt/actorq/share/actorq/k8s/base
COPY k8s/components /opt/actorq/share/actorq/k8s/components
EXPOSE 9090
ENTRYPOINT ["python", "-m", "actorq_apps.operator"]
