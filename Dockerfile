# The worker, and the command line. Mount your agent file and name it: docker run -v ./agents:/agents … worker my_agent.py

FROM python:3.13.12-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/perdure
WORKDIR /source
COPY . .
RUN /opt/perdure/bin/pip install ".[postgres,s3,otel,yaml]"

FROM python:3.13.12-slim-bookworm
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/perdure perdure \
    && mkdir /agents && chown perdure:perdure /agents
COPY --from=build /opt/perdure /opt/perdure
ENV PATH=/opt/perdure/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PERDURE_HOME=/var/lib/perdure
USER perdure
WORKDIR /agents
HEALTHCHECK --interval=30s --timeout=15s --start-period=30s --retries=3 CMD ["perdure", "ls", "--limit", "1"]
ENTRYPOINT ["perdure"]
CMD ["worker", "agent.py"]
