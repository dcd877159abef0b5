"""The GPU models that can be simulated: the ranges of their boards, and physics fitted to public measurements.

The parameters of each model were fitted to its published sweeps of power limits over many training workloads: the
Zeus artifact (NSDI'23; V100, A40, RTX 6000) and the Perseus artifact (SOSP'24; A100-PCIe), both in the
repository ml-energy/zeus, Apache-2.0. H100 follows two curves of the literature. Outside the range of limits that
was measured, the simulation extrapolates.
"""

import itertools
import re
from dataclasses import dataclass

from zeus_core.device.gpu import PowerRange
from zeus_core.device.simulated.power_model import GpuPhysics
from zeus_core.errors import UsageError
from zeus_core.validate import shown


@dataclass(frozen=True)
class GpuPreset:
    """One GPU model.

    Attributes:
        name: Product name, as the driver spells it.
        limit_range_watts: The limits the board accepts.
        highest_clock_mhz: Highest SM clock.
        lowest_clock_mhz: Lowest SM clock.
        physics: The fitted parameters.
        memory_gib: Memory of the board, in GiB.
        counter_period_seconds: Time between two updates of the energy counter.
        clock_step_mhz: Distance between two supported SM clocks.
    """

    name: str
    limit_range_watts: PowerRange
    highest_clock_mhz: int
    lowest_clock_mhz: int
    physics: GpuPhysics
    memory_gib: float
    counter_period_seconds: float = 0.1
    clock_step_mhz: int = 15

    @property
    def default_limit_watts(self) -> float:
        """The limit after the driver is loaded: the highest."""
        return self.limit_range_watts.highest_watts


# Shared by boards with the same chip. Fitted to the artifacts above, in these ranges of limits: V100 100 to 250 W,
# A100-PCIe 175 to 300 W, RTX 6000 100 to 260 W, A40 100 to 300 W, H100 200 to 700 W.
_V100 = GpuPhysics(40.0339, 62.2706, 0.7709, 0.7833, 0.1595, 1.0198)
_A100 = GpuPhysics(82.4691, 118.4714, 0.7422, 0.9148, 0.1215, 0.9583)
_RTX_6000 = GpuPhysics(81.2751, 76.1403, 0.7685, 0.5768, 0.0877, 0.9903)
_A40 = GpuPhysics(89.6794, 98.5525, 0.7693, 1.5043, 0.1873, 0.9888)
_H100 = GpuPhysics(103.2421, 279.7352, 0.7438, 0.9719, 0.1582, 0.9945)

PRESETS: dict[str, GpuPreset] = {
    preset.name: preset
    for preset in (
        GpuPreset("V100-PCIE-32GB", PowerRange(100.0, 250.0), 1380, 135, _V100, 32.0, counter_period_seconds=0.02),
        GpuPreset("V100-SXM2-32GB", PowerRange(150.0, 300.0), 1530, 135, _V100, 32.0, counter_period_seconds=0.02),
        GpuPreset("Quadro RTX 6000", PowerRange(100.0, 260.0), 2100, 300, _RTX_6000, 24.0),
        GpuPreset("A40", PowerRange(100.0, 300.0), 1740, 210, _A40, 48.0),
        GpuPreset("A100-SXM4-80GB", PowerRange(100.0, 400.0), 1410, 210, _A100, 80.0),
        GpuPreset("A100-PCIE-80GB", PowerRange(150.0, 300.0), 1410, 210, _A100, 80.0),
        GpuPreset("H100-SXM5-80GB", PowerRange(200.0, 700.0), 1980, 210, _H100, 80.0),
    )
}


def find_preset(model: str) -> GpuPreset:
    """Return the preset a person means by `model`.

    Capitals, spaces, hyphens and the vendor's words do not matter, and the first words of a name are enough: "A100"
    means the first preset that begins with this word.

    Raises:
        UsageError: There is no such preset; the message lists those there are.
    """
    wanted = "".join(_words(model))
    for preset in PRESETS.values():
        if wanted in itertools.accumulate(_words(preset.name)):
            return preset
    raise UsageError(f"there is no GPU model {shown(model)} here; choose one of: {', '.join(PRESETS)}")


def _words(model: str) -> list[str]:
    words = re.findall(r"[a-z0-9]+", model.lower())
    return [word for word in words if word not in {"nvidia", "tesla", "quadro"}]
