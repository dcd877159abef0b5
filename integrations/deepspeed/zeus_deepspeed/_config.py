"""The `"perseus"` block of a DeepSpeed configuration.

Its keys are the attributes of `PerseusConfig` and of `PipelineFrequencySettings`; docs/deepspeed.md lists them with
their types and defaults. As everywhere in DeepSpeed, `"auto"` is the default of any key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.pipeline.optimizer import PipelineFrequencySettings
from zeus_core.validate import checked_flag, checked_path, checked_whole_number, shown
from zeus_deepspeed._engine import config_of

_BLOCK = "perseus"
_MIN_LIKENESS = 0.8  # two swapped letters: 0.86; the nearest of the words in DeepSpeed 0.19.8, "persist": 0.71
_OWN_KEYS = ("enabled", "monitor_events", "gpu_index", "strict", "folder", "trace")

KEYS = (*_OWN_KEYS, *(setting.name for setting in fields(PipelineFrequencySettings)))
"""The keys of the block."""


@dataclass(frozen=True)
class PerseusConfig:
    """The values of the block.

    Attributes:
        enabled: Whether Perseus is on.
        monitor_events: Whether the energy of each step is written to DeepSpeed's monitors.
        gpu_index: The GPU of this rank, by the framework's index; the one that the engine uses if None.
        strict: Whether to raise where Perseus cannot start, as without a GPU; else one warning says why.
        folder: The output folder of the training, where the file of the run is kept for `zeus-core report`; none is if
            None. See docs/reports.md.
        trace: The folder of a trace of each rank, for Perfetto or Chrome; none is written if None. See docs/tracing.md.
        settings: The other keys.

    Raises:
        UsageError: A value is of the wrong type or out of its range.
    """

    enabled: bool = False
    monitor_events: bool = True
    gpu_index: int | None = None
    strict: bool = False
    settings: PipelineFrequencySettings = field(default_factory=PipelineFrequencySettings)
    folder: str | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("enabled", "monitor_events", "strict"):
            checked_flag(key, getattr(self, key))  # the text "false" would count as true
        for key in ("folder", "trace"):
            if (value := getattr(self, key)) is not None:
                checked_path(key, value, "output", "folder")
        if self.gpu_index is not None:
            checked_whole_number("gpu_index", self.gpu_index, 0)


def read_perseus_block(engine_or_config: Any) -> PerseusConfig | None:
    """Return the block of a DeepSpeed configuration; None if it has none.

    Args:
        engine_or_config: An engine, or the configuration as a mapping.

    Raises:
        UsageError: The block or a key is misspelt, or a value is wrong; the message names it, and what is accepted.
        ZeusError: The configuration cannot be read from this release of DeepSpeed.
    """
    config = engine_or_config if isinstance(engine_or_config, Mapping) else config_of(engine_or_config)
    if _BLOCK not in config:
        _check_spelling(config)
        return None
    block = config[_BLOCK]
    if not isinstance(block, Mapping):
        raise UsageError(f'{_BLOCK} is {shown(block)}; it must be a block, such as {{"enabled": true}}')
    for key in block:
        _check_key(key)
    return _config_of({key: value for key, value in block.items() if value != "auto"})


def _check_spelling(config: Mapping[str, Any]) -> None:
    """Check that no block of another name is meant for this one: DeepSpeed itself accepts any."""
    for key, value in config.items():
        if isinstance(value, Mapping) and difflib.get_close_matches(str(key).lower(), [_BLOCK], cutoff=_MIN_LIKENESS):
            raise UsageError(f"the block {key!r} is not known; did you mean {_BLOCK!r}?")


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
