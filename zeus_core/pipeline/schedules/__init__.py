"""Pipeline schedules: the instructions of each rank in their order.

>>> for instruction in one_f_one_b(stages=2, microbatches=2).ranks[1]:
...     print(instruction)
forward of stage 1, microbatch 0
backward of stage 1, microbatch 0
forward of stage 1, microbatch 1
backward of stage 1, microbatch 1
"""

from zeus_core.pipeline.schedules._alternating import gpipe, interleaved, one_f_one_b
from zeus_core.pipeline.schedules._instruction_lists import from_deepspeed, from_instruction_lists, from_torch
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
