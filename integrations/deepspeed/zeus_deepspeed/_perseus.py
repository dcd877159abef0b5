"""Perseus on an engine: plans the clocks of its pipeline during training."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch

from zeus_core.adapters import Patches, contained
from zeus_core.device import discover_gpus
from zeus_core.errors import UsageError, ZeusError
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.selection import warn_unless_measured
from zeus_core.pipeline.optimizer import PipelineFrequencyOptimizer
from zeus_core.pipeline.pipeline_observer import PipelineObserver
from zeus_core.pipeline.pipeline_record import RecordedPipeline
from zeus_core.ports import DeviceEvents, World
from zeus_core.ports.accelerator import INDEXED_TYPES
from zeus_core.ports.exchange import Exchange
from zeus_core.pytorch import device_events_for, torch_world
from zeus_core.training import TrainingEnergy
from zeus_core.validate import shown
from zeus_deepspeed._checkpoints import CheckpointedState, Stateful
from zeus_deepspeed._config import PerseusConfig, read_perseus_block
from zeus_deepspeed._engine import PipelineTap, check_engine, identity_of, is_pipeline, pipeline_rank_of
from zeus_deepspeed._monitor_events import MonitorEvents

if TYPE_CHECKING:
    from zeus_core.pipeline.pipeline_record import RecordedPipeline

_logger = logging.getLogger(__name__)


class Optimizer(PipelineObserver, Stateful, Protocol):
    """Receives what the pipeline does, and sets its clocks: a `PipelineFrequencyOptimizer`."""

    def set_straggler(self, time_seconds: float | None) -> None:
        """Announce how long an iteration takes elsewhere, in seconds; None if this job waits for nothing."""
        ...


class Perseus:
    """Attached to an engine, as its attribute `perseus`, until `detach` or the engine's `destroy`.

    Args:
        engine: A `PipelineEngine`.
        optimizer: Receives what the engine does, and sets the clocks.
        monitor_events: Writes the energy of its steps; None if nothing is written.
        record: Records what the engine does and reports it to the optimizer; nothing is recorded if None.

    Attributes:
        optimizer: As passed.
        tap: Reports what the engine does to the optimizer.
        monitor_events: As passed.
    """

    def __init__(
        self,
        engine: Any,
        optimizer: Optimizer,
        monitor_events: MonitorEvents | None,
        record: RecordedPipeline | None = None,
    ) -> None:
        self._engine = engine
        self._record = record
        self.optimizer = optimizer
        self.monitor_events = monitor_events
        self.tap: PipelineTap = PipelineTap(engine, optimizer if record is None else record)
        states = [CheckpointedState(optimizer)]
        if record is not None:
            states.append(CheckpointedState(record, "energy", "zeus-energy"))
        self._wraps = Patches(engine)
        for each in states:
            self._wraps.wrap("save_checkpoint", each.save)
            self._wraps.wrap("load_checkpoint", each.load)
        self._wraps.wrap("destroy", self._destroy)
        if monitor_events is not None:
            self._wraps.wrap("train_batch", monitor_events.measure)
        self._monitor_wraps = Patches(getattr(engine, "monitor", None))
        if record is not None and hasattr(engine, "monitor"):
            self._monitor_wraps.wrap("write_events", self._write_events)
        # Most scripts never destroy their engine.
        self._at_exit = weakref.finalize(self, _end, optimizer, record)
        engine.perseus = self

    def detach(self) -> None:
        """Leave the engine as it was, and close the optimizer, which restores the clocks and shows the result."""
        self._wraps.undo()
        self._monitor_wraps.undo()
        self.tap.detach()
        vars(self._engine).pop("perseus", None)
        self.optimizer.close()
        if self._record is not None:
            self._record.close()
        self._at_exit.detach()

    def _write_events(self, write: Callable[..., Any], events: Any, *args: Any, **kwargs: Any) -> Any:
        self._record_losses(events)
        return write(events, *args, **kwargs)

    @contained
    def _record_losses(self, events: Any) -> None:
        """Record the losses among what DeepSpeed logs, `Train/Samples/train_loss` and `eval_loss`: both are numbers."""
        if self._record is not None:
            self._record.record_losses(
                {each[0].rpartition("/")[2]: each[1] for each in events if each[0].endswith("_loss")}
            )

    def _destroy(self, destroy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.detach()
        return destroy(*args, **kwargs)


def _end(optimizer: Optimizer, record: RecordedPipeline | None) -> None:
    show_result = getattr(optimizer, "show_result", None)  # one of a user's own may have none
    if show_result is not None:
        show_result()
    if record is not None:
        record.close()


def attach(engine: Any, make_optimizer: Callable[..., Optimizer] = PipelineFrequencyOptimizer) -> Perseus | None:
    """Plan the clocks of an engine's pipeline, if the `"perseus"` block of its configuration enables it. Idempotent.

    If the block is enabled, this is a collective call: every rank of the job makes it, at the same point. If something
    is missing on one of them, such as a GPU, or `enabled` itself, all ranks train without Perseus, and the log of the
    first rank that is enabled says why; with `"strict": true` all of these raise. A rank that is not enabled waits for
    nobody.

    Args:
        engine: Any engine of DeepSpeed.
        make_optimizer: Creates the optimizer, from the arguments of `PipelineFrequencyOptimizer`.

    Returns:
        The attached `Perseus`, from this call or an earlier one; None if there is none.

    Raises:
        UsageError: The block is wrong; the message names the key, and what is accepted.
        Exception: Perseus cannot start on some rank, and the block is strict.
    """
    if not hasattr(engine, "__dict__"):
        raise UsageError(f"engine is {shown(engine)}; it must be that of deepspeed.initialize")
    attached = vars(engine).get("perseus")
    if isinstance(attached, Perseus):
        return attached
    blocks = _Blocks(engine)
    try:
        config = read_perseus_block(engine)
    except UsageError as error:
        blocks.send(f"wrong: {error}")
        raise
    except Exception as error:
        blocks.send("unreadable")
        _log_why_not(engine, error)
        return None
    if config is None or not config.enabled:
        blocks.send("missing" if config is None else "false")
        return None
    blocks.send(_ENABLED)
    first_rank = 0
    try:
        of_ranks = blocks.gather()
        first_rank = of_ranks.index(_ENABLED)
        _check_enabled(of_ranks)
        return _attached(engine, config, make_optimizer)
    except Exception as error:
        if config.strict:
            raise
        _log_why_not(engine, error, first_rank)
        return None


def _log_why_not(engine: Any, error: Exception, first_rank: int = 0) -> None:
    level = logging.WARNING if getattr(engine, "global_rank", 0) == first_rank else logging.INFO
    _logger.log(level, "Perseus is off; training continues: %s", error)


_ENABLED = "true"  # what a block says; else "false", or why it says nothing

# How long a rank that is enabled waits for the blocks of the others, as it does for them in other exchanges.
_BLOCKS_SECONDS = 60.0


def _check_enabled(of_ranks: Sequence[str]) -> None:
    for rank, block in enumerate(of_ranks):
        if block != _ENABLED:
            raise UsageError(
                f"perseus.enabled is {_ENABLED} on rank {of_ranks.index(_ENABLED)} and {block} on rank {rank}; use the "
                'same "perseus" block on every rank'
            )


# The engines of this process, each with its number and a counter of calls.
_calls: dict[int, tuple[int, Iterator[int]]] = {}  # of each engine, by its identity
_numbers = itertools.count()


class _Blocks:
    """The words of each rank's block, sent by the store of the process group: who sends waits for nobody.

    A collective call would be one for ranks without the block too: they would train on, and others wait for them.

    Args:
        engine: The engine. Ranks create their engines in the same order.
    """

    def __init__(self, engine: Any) -> None:
        self._store: Any = None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            with suppress(AttributeError, RuntimeError, ValueError):  # a private name of torch
                self._store = torch.distributed.distributed_c10d._get_default_store()
        if id(engine) not in _calls:  # an object of a user may refuse to be compared
            _calls[id(engine)] = next(_numbers), itertools.count()
            weakref.finalize(engine, _calls.pop, id(engine))
        number, calls = _calls[id(engine)]
        self._prefix = f"zeus_deepspeed/{number}/{next(calls)}"
        self._own = ""

    def send(self, block: str) -> None:
        """Send what the block of this rank says. Never raises: the others wait for it."""
        self._own = block
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(f"{self._prefix}/{torch.distributed.get_rank()}", block)

    def gather(self) -> list[str]:
        """Return what those of all ranks say, by rank; that of this rank alone if there is no store.

        Raises:
            ZeusError: A rank has not sent it in time.
        """
        if self._store is None:
            return [self._own]
        return [self._wait_for(rank) for rank in range(torch.distributed.get_world_size())]

    def _wait_for(self, rank: int) -> str:
        key = f"{self._prefix}/{rank}"
        try:
            self._store.wait([key], timedelta(seconds=_BLOCKS_SECONDS))
            return str(self._store.get(key), "utf-8")
        except RuntimeError as error:
            raise ZeusError(
                f'rank {rank} has not read its "perseus" block within {_BLOCKS_SECONDS:.0f} s: use zeus_deepspeed '
                "(`initialize`, `attach`, or the import of `zeus_deepspeed.auto`) on every rank"
            ) from error


def _attached(engine: Any, config: PerseusConfig, make_optimizer: Callable[..., Optimizer]) -> Perseus:
    if not is_pipeline(engine):
        raise ZeusError(
            f"Perseus needs a PipelineEngine; this engine is a {type(engine).__name__}: "
            "pass deepspeed.initialize a PipelineModule, or set perseus.enabled to false"
        )
    world = torch_world()  # first, as all ranks must take part
    exchange = Exchange(world)
    monitor = exchange.make(lambda: _monitor_of(engine, config))
    has_events = exchange.decide(lambda: config.monitor_events and bool(engine.monitor.enabled))
    events = MonitorEvents(engine, monitor, world, config.settings.check_steps) if has_events else None

    device_events = device_events_for(engine.device, monitor.time_source)

    def make() -> Optimizer:
        arguments = {"world": world, "identity": identity_of(engine), "device_events": device_events}
        return make_optimizer(monitor, pipeline_rank_of(engine), config.settings, **arguments)

    optimizer = exchange.make(make, unmake=lambda made: made.close())
    return Perseus(engine, optimizer, events, _record_of(engine, config, optimizer, monitor, device_events, world))


def _record_of(
    engine: Any,
    config: PerseusConfig,
    optimizer: Optimizer,
    monitor: ZeusMonitor,
    device_events: DeviceEvents,
    world: World,
) -> RecordedPipeline | None:
    if config.folder is None and config.trace is None:
        return None

    energy = TrainingEnergy(
        monitor,
        world=world,
        quiet=True,
        folder=config.folder,
        trace=config.trace or False,
    )
    this = weakref.ref(engine)  # what is to be done at exit refers to the record, and must not keep the engine
    return RecordedPipeline(optimizer, energy, device_events, lambda: int(getattr(this(), "global_steps", 0)))


def _monitor_of(engine: Any, config: PerseusConfig) -> ZeusMonitor:
    """Measures this rank's GPU. Raises if the engine or the GPU cannot be used."""
    check_engine(engine)
    device = engine.device
    if config.gpu_index is not None:
        index = config.gpu_index
    elif device.type in INDEXED_TYPES and device.index is not None:
        index = device.index
    else:
        index = max(engine.local_rank, 0) % len(discover_gpus())
    monitor = ZeusMonitor(gpu_indices=[index], cpu_indices=[])
    warn_unless_measured(monitor.gpus, device)
    return monitor
