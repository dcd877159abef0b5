"""GPUs through the files of their drivers in sysfs: AMD (amdgpu), Intel (i915, xe). No library, no lock, fork-safe."""
