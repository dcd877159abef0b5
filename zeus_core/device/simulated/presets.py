"""The GPU models that can be simulated: the ranges of their boards, and physics fitted to public measurements.

The parameters of each model were fitted to its published sweeps of power limits over many training workloads: the
Zeus artifact (NSDI'23; V100, A40, RTX 6000) and the Perseus artifact (SOSP'24; A100-PCIe), both in the
repository ml-energy/zeus, Apache-2.0. H100 follows two curves of the literature. Outside the range of limits that
was measured, the simulation extrapolates.
"""

import itertools
import math
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
        default_limit_watts: The limit after the driver is loaded.
        highest_clock_mhz: Highest SM clock.
        lowest_clock_mhz: Lowest SM clock.
        clock_step_mhz: Distance between two supported SM clocks.
        counter_period_seconds: Time between two updates of the energy counter.
        physics: The fitted parameters.
        fitted_range_watts: The limits the fit rests on.
        source: Where the measurements come from.
        memory_gib: Memory of the board, in GiB.
    """

    name: str
    limit_range_watts: PowerRange
    default_limit_watts: float
    highest_clock_mhz: int
    lowest_clock_mhz: int
    clock_step_mhz: int
    counter_period_seconds: float
    physics: GpuPhysics
    fitted_range_watts: PowerRange
    source: str
    memory_gib: float = math.inf

    @property
    def is_extrapolated(self) -> bool:
        """Whether the board accepts limits beyond those the fit rests on."""
        lowest_fitted, highest_fitted = self.fitted_range_watts
        return (
            self.limit_range_watts.lowest_watts < lowest_fitted or self.limit_range_watts.highest_watts > highest_fitted
        )


_ZEUS_ARTIFACT = "Zeus artifact (NSDI'23), single measurements of one GPU"
_PERSEUS_ARTIFACT = "Perseus artifact (SOSP'24), A100-PCIe, 4-stage pipelines, one limit for all GPUs"

# Shared by boards with the same chip. Fitted to the artifacts above; the ranges are the limits measured there.
_V100_PHYSICS = GpuPhysics(40.0339, 62.2706, 0.7709, 0.7833, 0.1595, 1.0198)
_V100_FITTED = PowerRange(100.0, 250.0)
_A100_PHYSICS = GpuPhysics(82.4691, 118.4714, 0.7422, 0.9148, 0.1215, 0.9583)
_A100_FITTED = PowerRange(175.0, 300.0)

PRESETS: dict[str, GpuPreset] = {
    preset.name: preset
    for preset in (
        GpuPreset(
            name="V100-PCIE-32GB",
            limit_range_watts=PowerRange(100.0, 250.0),
            default_limit_watts=250.0,
            highest_clock_mhz=1380,
            lowest_clock_mhz=135,
            clock_step_mhz=15,
            counter_period_seconds=0.02,
            physics=_V100_PHYSICS,
            fitted_range_watts=_V100_FITTED,
            source=_ZEUS_ARTIFACT,
            memory_gib=32.0,
        ),
        GpuPreset(
            name="V100-SXM2-32GB",
            limit_range_watts=PowerRange(150.0, 300.0),
            default_limit_watts=300.0,
            highest_clock_mhz=1530,
            lowest_clock_mhz=135,
            clock_step_mhz=15,
            counter_period_seconds=0.02,
            physics=_V100_PHYSICS,
            fitted_range_watts=_V100_FITTED,
            source=_ZEUS_ARTIFACT,
            memory_gib=32.0,
        ),
        GpuPreset(
            name="Quadro RTX 6000",
            limit_range_watts=PowerRange(100.0, 260.0),
            default_limit_watts=260.0,
            highest_clock_mhz=2100,
            lowest_clock_mhz=300,
            clock_step_mhz=15,
            counter_period_seconds=0.1,
            physics=GpuPhysics(81.2751, 76.1403, 0.7685, 0.5768, 0.0877, 0.9903),
            fitted_range_watts=PowerRange(100.0, 260.0),
            source=_ZEUS_ARTIFACT,
            memory_gib=24.0,
        ),
        GpuPreset(
            name="A40",
            limit_range_watts=PowerRange(100.0, 300.0),
            default_limit_watts=300.0,
            highest_clock_mhz=1740,
            lowest_clock_mhz=210,
            clock_step_mhz=15,
            counter_period_seconds=0.1,
            physics=GpuPhysics(89.6794, 98.5525, 0.7693, 1.5043, 0.1873, 0.9888),
            fitted_range_watts=PowerRange(100.0, 300.0),
            source=_ZEUS_ARTIFACT,
            memory_gib=48.0,
        ),
        GpuPreset(
            name="A100-SXM4-80GB",
            limit_range_watts=PowerRange(100.0, 400.0),
            default_limit_watts=400.0,
            highest_clock_mhz=1410,
            lowest_clock_mhz=210,
            clock_step_mhz=15,
            counter_period_seconds=0.1,
            physics=_A100_PHYSICS,
            fitted_range_watts=_A100_FITTED,
            source=_PERSEUS_ARTIFACT,
            memory_gib=80.0,
        ),
        GpuPreset(
            name="A100-PCIE-80GB",
            limit_range_watts=PowerRange(150.0, 300.0),
            default_limit_watts=300.0,
            highest_clock_mhz=1410,
            lowest_clock_mhz=210,
            clock_step_mhz=15,
            counter_period_seconds=0.1,
            physics=_A100_PHYSICS,
            fitted_range_watts=_A100_FITTED,
            source=_PERSEUS_ARTIFACT,
            memory_gib=80.0,
        ),
        GpuPreset(
            name="H100-SXM5-80GB",
            limit_range_watts=PowerRange(200.0, 700.0),
            default_limit_watts=700.0,
            highest_clock_mhz=1980,
            lowest_clock_mhz=210,
            clock_step_mhz=15,
            counter_period_seconds=0.1,
            physics=GpuPhysics(103.2421, 279.7352, 0.7438, 0.9719, 0.1582, 0.9945),
            fitted_range_watts=PowerRange(200.0, 700.0),
            source="two power-limit curves of the literature",
            memory_gib=80.0,
        ),
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
