"""NVIDIA GPUs, read and controlled through NVML, the driver's library."""
