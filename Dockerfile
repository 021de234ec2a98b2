# The command line as an image, built with BuildKit: docker build -t shadowspec:0.1.0 .
#
#   BASE_IMAGE     Python 3.11 or newer, with its venv module.  A PyTorch that it brings stays.
#   TORCH_BACKEND  which build of PyTorch is installed where the base brings none: cpu, or one of those with CUDA
#                  that `uv pip install --torch-backend` names, such as cu130; empty for the one of your package index
#   EXTRAS         what the image can do.  Without engine it has no PyTorch: it measures through servers.
#   APT_PACKAGES   Debian packages for the last stage.  Triton compiles on a GPU's machine: "gcc libc6-dev".
#
# A private package index is read from the secret `pip_conf` (a pip.conf), an authority of its own from the secret
# `certificates` (PEM).  Neither stays in a layer.
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG TORCH_BACKEND=cpu
ARG EXTRAS=classify,dashboard,engine,schedule,sql
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PATH=/opt/shadowspec/bin:$PATH
WORKDIR /build
COPY constraints.txt ./
# The largest layer first: a change of the code leaves it.  uv knows where PyTorch keeps its builds; pip does not.
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    [ ! -s /run/secrets/certificates ] || export PIP_CERT=/run/secrets/certificates SSL_CERT_FILE=/run/secrets/certificates; \
    python3 -m venv --system-site-packages /opt/shadowspec; \
    if [[ ",$EXTRAS," == *,engine,* ]] && ! python -c 'import torch' 2> /dev/null; then \
        python3 -m venv /opt/uv; \
        /opt/uv/bin/pip install --quiet --constraint constraints.txt uv; \
        index=$(pip config get global.index-url 2> /dev/null || true); \
        [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"; \
        /opt/uv/bin/uv pip install --no-cache --compile-bytecode --python /opt/shadowspec/bin/python \
            ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} --constraint constraints.txt torch; \
    fi
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY shadowspec ./shadowspec
COPY migrations ./migrations
COPY dashboards ./dashboards
COPY kernels/shadowspec_kernels ./kernels/shadowspec_kernels
COPY kernels/benchmarks/results/simulation.json ./kernels/benchmarks/results/
# The constraint on torch would replace a base's PyTorch by the index's, which carries CUDA.
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    [ ! -s /run/secrets/certificates ] || export PIP_CERT=/run/secrets/certificates; \
    sed '/^torch==/d' constraints.txt > constraints.image.txt; \
    pip install --quiet --constraint constraints.image.txt setuptools; \
    pip install --no-build-isolation --constraint constraints.image.txt ".[$EXTRAS]"; \
    pip uninstall --quiet --yes pip; \
    find /opt/shadowspec/lib/python3*/site-packages -maxdepth 2 -regex '.*/\(pandas\|pyarrow\)/tests' -prune -exec rm -r {} +

FROM ${BASE_IMAGE}
ARG APT_PACKAGES=""
RUN if [ -n "$APT_PACKAGES" ]; then \
        apt-get update -qq && apt-get install -y -qq --no-install-recommends $APT_PACKAGES \
        && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb; \
    fi \
    && useradd --create-home --uid 10001 shadowspec
COPY --from=build /opt/shadowspec /opt/shadowspec
# The root may be read-only: what libraries keep goes to /tmp, and models lie in /data, so nothing is fetched.
ENV PATH=/opt/shadowspec/bin:$PATH HOME=/tmp HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
USER 10001:10001
# /data holds what is read and written: the configuration, models, traffic and reports.
WORKDIR /data
ENTRYPOINT ["shadowspec"]
CMD ["--help"]
