"""The `"perseus"` block of a DeepSpeed configuration.

======================  =======  =======  =============================================================================
Key                     Type     Default  Meaning
======================  =======  =======  =============================================================================
`enabled`               boolean  `false`  Whether anything is done at all.
`monitor_events`        boolean  `true`   Write the energy of each step to DeepSpeed's monitors, where one is enabled.
`gpu_index`             integer  `auto`   The GPU of this rank, after `CUDA_VISIBLE_DEVICES`; `auto` is the one its
                                          engine uses, or without one that of its local rank.
`slowdown_factor`       number   `1.0`    The longest allowed iteration, as a multiple of that at the original clocks,
                                          up to 10.0; 1.0 is no slowdown.
`tolerance_fraction`    number   `0.02`   By what fraction of the allowed time a plan may be slower before a faster one
                                          replaces it.
`warmup_steps`          integer  `5`      Initial iterations that are left alone; at least one is.
`profile_instructions`  integer  `8`      How many instructions of each kind to measure at each clock.
`max_clocks`            integer  `12`     How many clocks to measure at most.
`lowest_clock_mhz`      integer  `null`   The lowest clock to use, in MHz; `null`: as low as still saves energy.
`original_clock_mhz`       integer  `null`   The clock in MHz that whoever set up the machine has locked its GPUs at;
                                          `null` if they are not locked.
`switch_seconds`        number   `null`   What a change of the clock costs, in seconds; `null`: as measured. Less than
                                          0.001 counts as nothing.
`check_steps`           integer  `10`     Iterations between two comparisons of what is measured with what was
                                          predicted, and between writes of the energies.
`follow_stragglers`     boolean  `true`   Whether a pipeline that waits for a slower one takes the time to save energy.
`profile_path`          string   `null`   File in which the profile is kept for the next run; `null`: not kept.
`plan_path`             string   `null`   A plan made beforehand, to deploy without profiling.
======================  =======  =======  =============================================================================

As everywhere in DeepSpeed, `"auto"` is the default of any key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from zeus_core._validate import checked_flag, checked_whole_number
from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency import PipelineFrequencySettings
from zeus_deepspeed._engine_facts import config_of

__all__ = ["KEYS", "PerseusConfig", "read_perseus_block"]

_BLOCK = "perseus"
_OWN_KEYS = ("enabled", "monitor_events", "gpu_index")

KEYS = (*_OWN_KEYS, *(it.name for it in fields(PipelineFrequencySettings)))
"""The keys of the block."""


@dataclass(frozen=True)
class PerseusConfig:
    """The values of the block.

    Attributes:
        enabled: Whether anything is done at all.
        monitor_events: Whether the energy of each step is written to DeepSpeed's monitors.
        gpu_index: The GPU of this rank, by the framework's index; the one that the engine uses if None.
        settings: The other keys.

    Raises:
        UsageError: A value is of the wrong type or out of its range.
    """

    enabled: bool = False
    monitor_events: bool = True
    gpu_index: int | None = None
    settings: PipelineFrequencySettings = field(default_factory=PipelineFrequencySettings)

    def __post_init__(self) -> None:
        """Check every value."""
        checked_flag("enabled", self.enabled)
        checked_flag("monitor_events", self.monitor_events)
        if self.gpu_index is not None:
            checked_whole_number("gpu_index", self.gpu_index, 0)


def read_perseus_block(engine_or_config: Any) -> PerseusConfig | None:
    """The block of a DeepSpeed configuration; None if it has none.

    Args:
        engine_or_config: An engine, or the configuration as a mapping.

    Raises:
        UsageError: A key is unknown, or its value is wrong; the message names it, and what is accepted.
        ZeusError: The configuration cannot be read from this release of DeepSpeed.
    """
    config = engine_or_config if isinstance(engine_or_config, Mapping) else config_of(engine_or_config)
    if _BLOCK not in config:
        return None
    block = config[_BLOCK]
    if not isinstance(block, Mapping):
        raise UsageError(f'{_BLOCK} is {block!r}; it must be a block, such as {{"enabled": true}}')
    for key in block:
        _check_key(key)
    return _config_of({key: value for key, value in block.items() if value != "auto"})


def _check_key(key: Any) -> None:
    if key not in KEYS:
        nearest = difflib.get_close_matches(str(key), KEYS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(KEYS)}"
        raise UsageError(f"{_BLOCK}.{key} is not known; {hint}")


def _config_of(values: Mapping[str, Any]) -> PerseusConfig:
    own = {key: value for key, value in values.items() if key in _OWN_KEYS}
    others = {key: value for key, value in values.items() if key not in _OWN_KEYS}
    try:
        return PerseusConfig(**own, settings=PipelineFrequencySettings(**others))
    except UsageError as error:
        raise UsageError(f"{_BLOCK}.{error}") from None
