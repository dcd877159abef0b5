# zeus-core with torch and the Hugging Face Trainer, for machines with NVIDIA GPUs. Users of it need no right:
# limits and clocks are set by the daemon of the host, whose socket is mounted (docs/deployment.md).
#
#     docker build --tag zeus-core .
#     docker run --gpus all -v /run/zeus-core-socket:/run/zeus-core-socket:ro --group-add GROUP zeus-core doctor

ARG CUDA=12.6.3
FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04 AS base
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 && \
    rm -rf /var/lib/apt/lists/*

FROM base AS build
ARG TORCH=2.7.1
ARG EXTRAS=huggingface,pipeline,plot,prometheus
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3-pip python3-venv && \
    rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/zeus-core && \
    /opt/zeus-core/bin/pip install --no-cache-dir "torch==${TORCH}"
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY zeus_core zeus_core
COPY integrations integrations
RUN /opt/zeus-core/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM base
COPY --from=build /opt/zeus-core /opt/zeus-core
# "utility" is NVML, by which energy is measured.
ENV PATH=/opt/zeus-core/bin:${PATH} \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1
RUN useradd --system --create-home --uid 10001 trainer
USER 10001:10001
WORKDIR /home/trainer
ENTRYPOINT ["zeus-core"]
CMD ["doctor"]
