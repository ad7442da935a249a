# The service alone (`extproc serve`, `extproc check`) and the simulated servers (`extproc vllm-sim`); Envoy has its own image.
FROM python:3.12.13-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY envoy ./envoy
COPY extproc ./extproc
RUN python -m venv /opt/extproc && /opt/extproc/bin/pip install --no-cache-dir ".[kubernetes,dns,autoscale,otel]"

FROM python:3.12.13-slim-trixie
RUN useradd --system --uid 10001 --no-create-home extproc
COPY --from=build /opt/extproc /opt/extproc
ENV PATH=/opt/extproc/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 9002 9003
# The admin port answers only on loopback unless the configuration says otherwise, and so does this check.
HEALTHCHECK --interval=5s --timeout=2s --start-period=5s \
  CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:9003/healthz', timeout=1)"]
ENTRYPOINT ["extproc"]
CMD ["serve", "--envoy", "/etc/extproc/envoy.yaml"]
