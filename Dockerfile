# Our layer over a vendor's image that holds torch, torch_npu and CANN. `make image` calls this with every
# argument filled in and a wheelhouse in wheels/; docs/image.md. Written for the classic builder: no syntax
# line, no mounts, and nothing of it reaches out.
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS build
LABEL stack.stage=build
ARG PYTHON
ARG PACKAGES
ARG ENVIRONMENT
ARG CANN
ARG EPOCH
ARG RUN_UID
ARG DRIVER_GID
USER root
COPY . /build/
RUN sh /build/scripts/image/assemble.sh

FROM ${BASE_IMAGE}
USER root
COPY --from=build /image/ /
ARG REVISION
ARG LOCK
# Nothing in the container looks for a hub, an index or a telemetry server.
ENV PATH=/opt/stack/bin:${PATH} \
    HOME=/work \
    HF_HUB_OFFLINE=1 \
    TRANSFORMERS_OFFLINE=1 \
    HF_DATASETS_OFFLINE=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    PIP_NO_INDEX=1 \
    UV_OFFLINE=1 \
    PYTHONNOUSERSITE=1 \
    STACK_REVISION=${REVISION} \
    STACK_LOCK=${LOCK}
WORKDIR /work
USER stack
RUN stack --version && stack mirror wheels --help >/dev/null
HEALTHCHECK --interval=5m --timeout=1m --start-period=1m CMD ["stack", "doctor"]
ENTRYPOINT ["/opt/stack/bin/with-environment"]
CMD ["stack", "doctor"]
ARG VERSION
ARG BASE_NAME
ARG BASE_ID
ARG CREATED
ARG INPUTS
LABEL org.opencontainers.image.title="stack" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.base.digest="${BASE_ID}" \
      stack.lock="${LOCK}" \
      stack.inputs="${INPUTS}"
