# The command line as an image: docker build -t shadowspec:0.1.0 .
FROM python:3.12-slim-bookworm

WORKDIR /opt/shadowspec
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY shadowspec ./shadowspec
COPY migrations ./migrations
COPY dashboards ./dashboards
COPY kernels/shadowspec_kernels ./kernels/shadowspec_kernels
COPY kernels/benchmarks/results/simulation.json ./kernels/benchmarks/results/
RUN pip install --no-cache-dir --constraint constraints.txt setuptools \
    && pip install --no-cache-dir --no-build-isolation --constraint constraints.txt '.[dashboard,schedule,sql]' \
    && rm -rf build *.egg-info \
    && useradd --create-home --uid 10001 shadowspec

# /data holds what is read and written: the configuration, models, traffic and reports.
USER shadowspec
WORKDIR /data
ENTRYPOINT ["shadowspec"]
CMD ["--help"]
