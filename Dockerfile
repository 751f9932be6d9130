# syntax=docker/dockerfile:1
# Built from the versions in constraints.txt, for GPUs or for CPUs:
#
#     docker build --tag tintype .
#     docker build --tag tintype:cpu --build-arg DEVICE=cpu .
#
# The folder /work is where the command runs, and /cache has what it downloads or caches:
#
#     docker run --rm --gpus all --volume "$PWD":/work --volume tintype:/cache tintype ablate pocket --out demo
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm

# Extras of the package, as in `pip install tintype[encoders,tensorboard]`
ARG EXTRAS=encoders,tensorboard
# cuda: torch as PyPI has it, with CUDA's libraries. cpu: a build without, which is much smaller
ARG DEVICE=cuda

# Triton compiles a launcher for each kernel, with a C compiler
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /source
COPY constraints.txt ./
RUN case "$DEVICE" in \
        cuda) set -- ;; \
        cpu) set -- --extra-index-url https://download.pytorch.org/whl/cpu ;; \
        *) echo "DEVICE is '$DEVICE'; give cuda or cpu" >&2; exit 1 ;; \
    esac \
    && pip install --no-cache-dir --constraint constraints.txt "$@" torch

COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY tintype ./tintype
RUN pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]" \
    && rm -rf /source \
    && useradd --uid 1000 --create-home tintype \
    && mkdir /work /cache \
    && chown tintype /work /cache

USER 1000
WORKDIR /work
ENV TINTYPE_CACHE=/cache HF_HOME=/cache/huggingface
ENTRYPOINT ["tintype"]
CMD ["--help"]
