"""Perseus for DeepSpeed: plans the clocks of a pipeline during training.

It is configured by the `"perseus"` block of the DeepSpeed configuration (its keys: `zeus_deepspeed._config`), and
does nothing without one. DeepSpeed itself is not changed. Use one of these:

    torchrun -m zeus_deepspeed train.py ...        # with an unchanged script

    import zeus_deepspeed.auto                     # before the engine is created

    engine, *_ = zeus_deepspeed.initialize(...)    # in place of deepspeed.initialize

    zeus_deepspeed.attach(engine)                  # for an engine that exists already
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zeus_deepspeed._perseus

__all__ = ["attach", "initialize"]


def initialize(*args: Any, **kwargs: Any) -> Any:
    """`deepspeed.initialize`, with Perseus if the configuration has the block.

    Same arguments and return value.

    Raises:
        UsageError: The block is wrong; the message names the key, and what is accepted.
        ImportError: DeepSpeed is missing or too old; the message contains the pip command.
    """
    _require_deepspeed()
    import deepspeed

    result = deepspeed.initialize(*args, **kwargs)
    attach(result[0])
    return result


def attach(engine: Any) -> zeus_deepspeed._perseus.Perseus | None:
    """Attach Perseus to an engine, if its configuration enables it: see `zeus_deepspeed._perseus.attach`.

    Every rank must call this at the same point.

    Raises:
        UsageError: The block is wrong; the message names the key, and what is accepted.
        ImportError: DeepSpeed is missing or too old; the message contains the pip command.
    """
    _require_deepspeed()
    from zeus_deepspeed._perseus import attach as attach_perseus

    return attach_perseus(engine)


def _require_deepspeed() -> None:
    from zeus_core.adapters import require

    require("deepspeed")
