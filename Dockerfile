# syntax=docker/dockerfile:1
# A server of models by the light core, without torch: docs/serving.md says how to use it.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN ["pip", "wheel", "--no-cache-dir", "--no-deps", "--wheel-dir", "/wheels", "."]

FROM python:3.12-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/dafuse-*.whl)[serve]"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin dafuse
USER 10001:10001
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["dafuse"]
CMD ["serve", "/models/model.onnx", "--host", "0.0.0.0"]
