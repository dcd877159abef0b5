"""GPUs through the files of their kernel drivers in sysfs: AMD (amdgpu) and Intel (i915, xe). No library, no lock, safe in forks."""
