# The image of a pod's two containers: NVIDIA's Triton of a TensorRT-LLM release and trtspec, or a small one for
# the torch backend on CPUs. `make image` builds either; both run as any user, on a root file system that can only
# be read, with /tmp, /dev/shm and the volume of the engines to write to.
#
#   docker build --target tensorrt_llm --tag registry/trtspec:0.1.0-1.2.1 .
#   docker build --target torch --tag registry/trtspec:0.1.0-torch .
#
# NVIDIA's image is pinned by its digest of x86-64. `trtspec/recipe/releases.py` has the tags of each release, and
# --build-arg TRITON_IMAGE=… names another. Wheels of torch for CPUs alone are a tenth of the
# others: --build-arg PIP_EXTRA_INDEX_URL=… names PyTorch's index of them.
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.06-trtllm-python-py3@sha256:9882caef7253324b993cc9c4b955f264f1971745209718f55a2dc9807f8dd734
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
# The package has the model of the repository, and the recipes, by links.
COPY model_repository model_repository
COPY recipes recipes
COPY trtspec trtspec
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS torch
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
# Of the pytriton wheel only its tritonserver is used, so what its Python API needs is not installed.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    python3 -m pip install --no-cache-dir --constraint /constraints.txt "$(echo /wheels/*.whl)[serve,torch,s3,gcs]" \
    && python3 -m pip install --no-cache-dir --constraint /constraints.txt --no-deps nvidia-pytriton
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["trtspec", "--help"]

FROM ${TRITON_IMAGE} AS tensorrt_llm
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
# An environment of its own, which sees NVIDIA's packages and changes none of them, and is not on PATH: the
# interpreter in Triton's Python backend takes the packages of the python3 that it finds there.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    python3 -m venv --without-pip --system-site-packages /opt/trtspec \
    && PIP_CONSTRAINT='' python3 -m pip --python /opt/trtspec/bin/python install --no-cache-dir \
      "$(echo /wheels/*.whl)[serve,s3,gcs]" \
    && ln -s /opt/trtspec/bin/trtspec /usr/local/bin/trtspec
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/nvidia/nvidia_entrypoint.sh"]
CMD ["trtspec", "--help"]
