"""The GPU models that can be simulated."""

import pytest

from zeus_core.device import find_preset
from zeus_core.device.gpu import PowerRange
from zeus_core.device.simulated.power_model import GpuPhysics
from zeus_core.device.simulated.presets import PRESETS
from zeus_core.errors import UsageError

PUBLISHED_FITS = {
    "V100": GpuPhysics(
        static_power_watts=40.0339,
        blocking_power_watts=62.2706,
        lowest_voltage_fraction=0.7709,
        voltage_slope=0.7833,
        lowest_clock_fraction=0.1595,
        regulated_fraction=1.0198,
    ),
    "A40": GpuPhysics(
        static_power_watts=89.6794,
        blocking_power_watts=98.5525,
        lowest_voltage_fraction=0.7693,
        voltage_slope=1.5043,
        lowest_clock_fraction=0.1873,
        regulated_fraction=0.9888,
    ),
    "A100": GpuPhysics(
        static_power_watts=82.4691,
        blocking_power_watts=118.4714,
        lowest_voltage_fraction=0.7422,
        voltage_slope=0.9148,
        lowest_clock_fraction=0.1215,
        regulated_fraction=0.9583,
    ),
    "H100": GpuPhysics(
        static_power_watts=103.2421,
        blocking_power_watts=279.7352,
        lowest_voltage_fraction=0.7438,
        voltage_slope=0.9719,
        lowest_clock_fraction=0.1582,
        regulated_fraction=0.9945,
    ),
    "RTX 6000": GpuPhysics(
        static_power_watts=81.2751,
        blocking_power_watts=76.1403,
        lowest_voltage_fraction=0.7685,
        voltage_slope=0.5768,
        lowest_clock_fraction=0.0877,
        regulated_fraction=0.9903,
    ),
}


def presets_of(model: str):
    return [preset for preset in PRESETS.values() if model in preset.name]


@pytest.mark.parametrize("model", PUBLISHED_FITS)
def test_every_board_of_a_model_has_the_published_fit(model):
    assert presets_of(model)
    for preset in presets_of(model):
        assert preset.physics == PUBLISHED_FITS[model]


def test_every_preset_belongs_to_a_published_fit():
    assert all(any(model in name for model in PUBLISHED_FITS) for name in PRESETS)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_describes_a_possible_board(preset):
    lowest_watts, highest_watts = preset.limit_range_watts
    assert 0 < lowest_watts < highest_watts
    assert lowest_watts <= preset.default_limit_watts <= highest_watts
    assert 0 < preset.lowest_clock_mhz < preset.highest_clock_mhz
    assert (preset.highest_clock_mhz - preset.lowest_clock_mhz) % preset.clock_step_mhz == 0
    assert preset.counter_period_seconds > 0
    assert PRESETS[preset.name] is preset


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_limit_of_a_board_leaves_power_above_the_static_power(preset):
    regulated_watts = preset.physics.regulated_fraction * preset.limit_range_watts.lowest_watts
    assert regulated_watts > preset.physics.static_power_watts


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("A100", "A100-SXM4-80GB"),
        ("a100-pcie", "A100-PCIE-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("V100", "V100-PCIE-32GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("a40", "A40"),
        ("NVIDIA A40", "A40"),
        ("h100", "H100-SXM5-80GB"),
        ("H100 SXM5", "H100-SXM5-80GB"),
        ("RTX 6000", "Quadro RTX 6000"),
        ("rtx6000", "Quadro RTX 6000"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
    ],
)
def test_a_model_is_found_by_any_spelling_of_its_names_beginning(model, name):
    assert find_preset(model).name == name


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_is_found_by_its_full_name(name):
    assert find_preset(name).name == name


@pytest.mark.parametrize("model", ["B200", "", " ", "-", "NVIDIA", "100"])
def test_an_unknown_model_is_a_usage_error_that_lists_all_models(model):
    with pytest.raises(UsageError) as raised:
        find_preset(model)
    assert repr(model) in str(raised.value)
    for name in PRESETS:
        assert name in str(raised.value)


def test_ranges_are_lowest_and_highest():
    assert PRESETS["A40"].limit_range_watts == PowerRange(lowest_watts=100.0, highest_watts=300.0)
