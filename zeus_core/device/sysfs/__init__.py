"""GPUs through the files of their kernel drivers in sysfs: AMD (amdgpu). No library, no lock, safe in forks."""
