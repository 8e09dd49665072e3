# The training image: one of AWS's Deep Learning Containers, or any base with Python and torch,
# plus the operator's build dependencies, the job's Python packages, and this project's code.
#
# docker build [--build-arg DEVICE=gpu] [--build-arg BASE_IMAGE=...] [--build-arg PREBUILD=0]
#     [--build-arg EXTRAS=dali] .
# docker build --platform=linux/arm64 --build-arg BASE_IMAGE=arm64 .
ARG AWS_IMAGE=public.ecr.aws/deep-learning-containers/pytorch:2.14
ARG DEVICE=cpu
ARG BASE_IMAGE=${DEVICE}

FROM ${AWS_IMAGE}-cpu-amzn2023-sagemaker AS cpu
FROM ${AWS_IMAGE}-cu133-amzn2023-sagemaker AS gpu

# AWS has no such image for arm64: install torch from its index into Python's official image.
FROM docker.io/library/python:3.13-slim-bookworm AS arm64
RUN --mount=type=bind,source=requirements,target=/requirements \
    pip install --no-cache-dir --root-user-action=ignore \
    --index-url https://download.pytorch.org/whl/cpu -r /requirements/torch.in

FROM ${BASE_IMAGE}
# The build dependencies of the operator: the headers of libjpeg-turbo, and a C++ compiler unless the
# base has one. The distribution decides the versions.
# hadolint ignore=DL3008,DL3041,SC2046
RUN if command -v dnf; then \
        dnf install -y --setopt=install_weak_deps=False \
            libjpeg-turbo-devel $(command -v c++ >/dev/null || echo gcc-c++) \
        && dnf clean all \
        && rm -rf /var/cache/dnf; \
    else \
        export DEBIAN_FRONTEND=noninteractive \
        && apt-get update \
        && apt-get install -y --no-install-recommends \
            libjpeg-dev $(command -v c++ >/dev/null || echo g++) \
        && apt-get clean \
        && rm -rf /var/lib/apt/lists/*; \
    fi

# Names of requirements/*.in to install besides job.in: dali, mlflow, parquet, timm, wandb.
ARG EXTRAS=
RUN --mount=type=bind,source=launch/image_packages.py,target=/image_packages.py \
    --mount=type=bind,source=requirements,target=/requirements \
    --mount=type=bind,source=project/requirements.in,target=/project/requirements.in \
    python /image_packages.py /requirements /project/requirements.in job ${EXTRAS}

# /opt/ml belongs to SageMaker, so the code lives elsewhere. HOME and USER let the job run under a
# uid that is not in /etc/passwd; /tmp is writable even if the root is not.
ENV PYTHONPATH=/opt/program \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=job \
    DEMO_DATA=/tmp/data/demo \
    NCCL_DEBUG=WARN \
    OPT_OUT_TRACKING=true

WORKDIR /opt/program
# PREBUILD=0 leaves out the operator and the bytecode of packages: the build is faster, each start is
# slower.
ARG PREBUILD=1
ENV CUSTOM_OP_CACHE=/opt/custom_op_cache

# Layers are ordered by how rarely they change, so that a changed line in project/ costs kilobytes.
# First the bytecode of packages, which AWS's image lacks; pip compiles those that it installs.
RUN mkdir -m 0755 "${CUSTOM_OP_CACHE}" \
    && if [ "${PREBUILD}" != 0 ]; then \
         scratch="$(mktemp -d)" \
         && HOME="${scratch}" TMPDIR="${scratch}" PYTHONDONTWRITEBYTECODE='' python -c \
           'import PIL.ImageOps, filelock, jinja2, matplotlib.figure, networkx, omegaconf, \
            pydantic.dataclasses, rich.progress, safetensors.torch, \
            torch.distributed.run, torch.utils.tensorboard, \
            torchvision.transforms.v2, uvicorn.protocols.http.h11_impl, yaml' \
         && rm -rf "${scratch}"; \
       fi

# Modes are explicit, because those of the checkout depend on its owner's umask. Unchecked bytecode
# does not depend on the time of the checkout, and is not compared with its source at each start.
COPY --chmod=0755 custom_op/ /opt/program/custom_op/
# Compiles the operator for the processor of this build: jobs and endpoints on such a processor start
# without compiling, any other compiles its own at the start. Only root can write this cache. A job
# under another uid that must compile uses a private folder in /tmp.
RUN python -m compileall -q --invalidation-mode unchecked-hash custom_op \
    && if [ "${PREBUILD}" != 0 ]; then \
         scratch="$(mktemp -d)" \
         && HOME="${scratch}" TMPDIR="${scratch}" python -c 'import custom_op; custom_op.load()' \
         && rm -rf "${scratch}"; \
       fi
COPY --chmod=0755 entry_point/ /opt/program/entry_point/
RUN python -m compileall -q --invalidation-mode unchecked-hash entry_point
COPY --chmod=0755 configs/ /opt/program/configs/
COPY --chmod=0755 project/ /opt/program/project/
RUN python -m compileall -q --invalidation-mode unchecked-hash project

# Last, because they change with every commit. The command `env` prints both.
ARG VERSION=unknown
ARG REVISION=unknown
ENV IMAGE_VERSION=${VERSION} \
    IMAGE_REVISION=${REVISION}
# accept-bind-to-port: SageMaker may set SAGEMAKER_BIND_TO_PORT.
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true \
      org.opencontainers.image.title="managed-training-template" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      managed-training-template.extras="${EXTRAS}" \
      managed-training-template.prebuild="${PREBUILD}"

# Exec form: the job is the container's first process and receives SIGTERM itself.
ENTRYPOINT ["python", "-m", "entry_point"]
# Without a command, the entry point trains inside a job and prints a report elsewhere.
CMD []
EXPOSE 8080
