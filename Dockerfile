# Images of partq. No test builds them; tests/release installs what the lines below install, and runs it.
#
#   docker build --target coordinator -t partq-coordinator .   the sidecar and the command line, without Java
#   docker build --target spark -t partq-spark .               the same, and Spark's drivers in local mode
#
# Credentials come from the environment when a container runs; none is ever a part of an image.

FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml LICENSE partq.py partq.pyi pyspark_partq.py ./
COPY partq_spark partq_spark
COPY coordinator coordinator
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.11-slim-bookworm AS coordinator
# The versions that the tests ran with; other ones within pyproject.toml's bounds work too.
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheel /tmp/wheel
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(echo /tmp/wheel/*.whl)[all]" && rm -r /tmp/wheel
RUN useradd --uid 10001 --create-home partq
USER 10001
WORKDIR /home/partq
ENTRYPOINT ["partq"]
CMD ["coordinator", "run"]

FROM coordinator AS spark
USER root
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
# The Python that Spark's workers run must have partq: it is this one.
ENV PYSPARK_PYTHON=/usr/local/bin/python
USER 10001
ENTRYPOINT ["python"]
CMD ["--version"]
