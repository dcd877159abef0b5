"""GPUs of NVIDIA, through NVML."""
