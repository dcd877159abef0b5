"""Pipeline schedules: what each rank runs, in which order; one strategy per module."""

from zeus_core.pipeline.schedules._gpipe import gpipe
from zeus_core.pipeline.schedules._instruction_lists import from_deepspeed, from_instruction_lists, from_torch
from zeus_core.pipeline.schedules._interleaved import interleaved
from zeus_core.pipeline.schedules._one_f_one_b import one_f_one_b
from zeus_core.pipeline.schedules._zero_bubble import zb_h1, zbv

__all__ = [
    "from_deepspeed",
    "from_instruction_lists",
    "from_torch",
    "gpipe",
    "interleaved",
    "one_f_one_b",
    "zb_h1",
    "zbv",
]
