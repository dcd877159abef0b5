"""An NVML driver for tests: real `nvidia-ml-py` calls, on devices that a test describes. See README.md.

library = build_library(tmp_path_factory.mktemp("nvml"))  # once per session; NoCompilerError without a compiler
with NvmlDriver(tmp_path, [DeviceSpec(), DeviceSpec(idle_watts=60.0)], library=library) as driver:
    driver.load_in_process()  # this process; or subprocess.run(..., env={**os.environ, **driver.environment})
    driver[0].set_load([(0.2, 650.0), (0.1, 120.0)], repeat=True)
    ...
    driver[0].true_energy_joules(begin, end)  # moments of time.monotonic()
"""

from tests.nvml_driver.device import NvmlDevice
from tests.nvml_driver.driver import Call, NvmlDriver
from tests.nvml_driver.library import NoCompilerError, build_library
from tests.nvml_driver.spec import DeviceSpec

__all__ = ["Call", "DeviceSpec", "NoCompilerError", "NvmlDevice", "NvmlDriver", "build_library"]
