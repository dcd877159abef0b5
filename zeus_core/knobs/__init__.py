"""Knobs: hardware settings that are changed during training and restored afterwards."""

from zeus_core.knobs.clock import ClockKnob
from zeus_core.knobs.knob import Knob, StuckKnob
from zeus_core.knobs.power_limit import PowerLimitKnob, check_power_limit, power_limit_settings

__all__ = ["ClockKnob", "Knob", "PowerLimitKnob", "StuckKnob", "check_power_limit", "power_limit_settings"]
