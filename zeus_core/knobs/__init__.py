"""Knobs: hardware settings that are changed during training and restored afterwards."""

from zeus_core.knobs._knob import Knob
from zeus_core.knobs._power_limit import PowerLimitKnob
from zeus_core.knobs._sm_clock import SmClockKnob

__all__ = [
    "Knob",
    "PowerLimitKnob",
    "SmClockKnob",
]
