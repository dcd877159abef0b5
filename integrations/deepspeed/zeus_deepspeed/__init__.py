"""Perseus for DeepSpeed: the clocks of a pipeline's stages, planned while it trains.

It does what the `"perseus"` block of the DeepSpeed configuration says (see `zeus_deepspeed.config` for its keys), and
nothing without one. DeepSpeed stays as it is. Any of these will do:

    torchrun -m zeus_deepspeed train.py ...        # the script stays as it is

    import zeus_deepspeed.auto                     # whoever calls deepspeed.initialize

    engine, *_ = zeus_deepspeed.initialize(...)    # in place of deepspeed.initialize

    zeus_deepspeed.attach(engine)                  # an engine that is there already
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zeus_deepspeed.perseus

__all__ = ["attach", "initialize"]


def initialize(*args: Any, **kwargs: Any) -> Any:
    """`deepspeed.initialize`, with Perseus if the configuration has the block.

    Takes and returns the same.

    Raises:
        UsageError: The block is wrong; the message names the key, and what would do.
        ImportError: DeepSpeed is missing, or too old; the message holds the pip line.
    """
    _require_deepspeed()
    import deepspeed

    result = deepspeed.initialize(*args, **kwargs)
    attach(result[0])
    return result


def attach(engine: Any) -> zeus_deepspeed.perseus.Perseus | None:
    """Attach Perseus to an engine, if its configuration has the block: see `zeus_deepspeed.perseus.attach`.

    Every rank must call this at the same point.

    Raises:
        UsageError: The block is wrong; the message names the key, and what would do.
        ImportError: DeepSpeed is missing, or too old; the message holds the pip line.
    """
    _require_deepspeed()
    from zeus_deepspeed import perseus

    return perseus.attach(engine)


def _require_deepspeed() -> None:
    from zeus_core.extras import require

    require("deepspeed", "0.14.5", "deepspeed")
