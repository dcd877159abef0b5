"""The steps of any torch optimizer, as the steps of a training that reports nothing.

torch calls hooks at both ends of each step, for all optimizers of the process. Those of an optimizer within the step of
another one (a wrapper, an engine of DeepSpeed) are part of it, and a step that a `GradScaler` skips is none. Which of
the others are steps of the program, `_optimizer_turns.py` says.

This is module-level state, as the hooks of torch are.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zeus_core.adapters import Patches, contained
from zeus_core.adapters.contained import log_fault
from zeus_core.errors import NotSupportedError
from zeus_core.ports.accelerator import INDEXED_TYPES
from zeus_core.pytorch.followed._optimizer_turns import OptimizerTurns
from zeus_core.validate import wrong_argument

if TYPE_CHECKING:
    from zeus_core.events import TrainingOptimizer
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.training import TrainingEnergy
    from zeus_core.training.followed_steps import FollowedSteps


def follow_optimizers(optimizer: Callable[[ZeusMonitor], TrainingOptimizer | None] | None = None) -> None:
    """Measure loops of this process that report to nobody: by the steps of torch's optimizers.

    A loop begins with the first step of an optimizer, and ends with the process, or when a training begins that
    measures itself, as with a callback. Its result is shown at the end. The time from one step to the next belongs to
    the steps, unless it is unusually long: then it is *between steps*.

    In a job of several processes, call it on all of them; optimizers must step on all. It may be called again. Steps
    of optimizers that are part of a graph, of CUDA or of `torch.compile(fullgraph=True)`, are not seen.

    Args:
        optimizer: Makes the search for a setting from the monitor, such as `GlobalPowerLimitOptimizer`. If None, the
            power limit with the least energy within a slowdown is searched if `ZEUS_SAVE` is that slowdown ("10%").

    Raises:
        UsageError: `optimizer` is no function.
        NotSupportedError: This release of torch is older than 2.3.
    """
    if not hasattr(torch.compiler, "is_compiling"):
        raise NotSupportedError(f"torch {torch.__version__} is too old to follow optimizers; 2.3 or newer is needed")
    if optimizer is not None:
        if not callable(optimizer):  # such as one that is made already; it would fail in the first step
            wanted = "a function of a monitor that makes an optimizer, such as GlobalPowerLimitOptimizer"
            raise wrong_argument("optimizer", optimizer, wanted)
        _follower.make_optimizer = optimizer
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_before))
        _handles.append(register_optimizer_step_post_hook(_after))
        if torch.distributed.is_available():
            for module in (torch.distributed, torch.distributed.distributed_c10d):
                _patches.append(Patches(module))
                _patches[-1].wrap("destroy_process_group", _destroy_process_group)
    follow_engines()


def follow_engines() -> None:
    """Follow the steps of DeepSpeed's engines, if it was imported: each has one for all groups of parameters."""
    module = sys.modules.get("deepspeed.runtime.engine")
    engine = getattr(module, "DeepSpeedEngine", None)
    if _handles and engine is not None and not _engines:
        _engines.append(Patches(engine))
        _engines[0].wrap("_take_model_step", _take_model_step)


def stop_following() -> None:
    """End the loop under way, and follow no other one."""
    while _handles:
        _handles.pop().remove()
    for patches in (_engines, _patches):
        while patches:
            patches.pop().undo()
    end_loop()
    _follower.make_optimizer, _follower.has_failed = None, False


def end_loop() -> None:
    """End the loop under way, and show its result. The next step begins another one."""
    _follower.stop()


def followed_energy() -> TrainingEnergy | None:
    """Return the account of the loop under way; None without one."""
    return None if _follower.steps is None else _follower.steps.energy


class _Follower:
    """Finds the steps of a training in those of optimizers."""

    def __init__(self) -> None:
        self._stack: list[int] = []  # the optimizers whose steps are under way, the outermost first
        self._thread: Thread | None = None  # that trains
        self._other_threads: set[int | None] = set()
        self.steps: FollowedSteps | None = None  # of the loop under way
        self.make_optimizer: Callable[[ZeusMonitor], TrainingOptimizer | None] | None = None
        self._turns = OptimizerTurns()
        self.has_failed = False

    @contained(on_fault=lambda self, error: self.fail(error))
    def begin(self, optimizer: Any) -> None:
        """Begin a step of an optimizer."""
        if self.has_failed or not self._is_in_thread():
            return
        if id(optimizer) in self._stack:  # an exception has left its latest step
            del self._stack[self._stack.index(id(optimizer)) :]
        self._stack.append(id(optimizer))
        if len(self._stack) > 1:
            return
        from zeus_core.training.followed_steps import is_training_beside

        if is_training_beside(self.steps):
            self.stop()
            self._stack.append(id(optimizer))
        elif self.steps is None:
            self._thread = current_thread()
            self.steps = self._new_steps(optimizer)
            self._note_other_threads()  # those that took steps meanwhile

    @contained(on_fault=lambda self, error: self.fail(error))
    def end(self, optimizer: Any, is_skipped: bool | None = None) -> None:
        """End a step of an optimizer. None: whether it was skipped, the optimizer says."""
        if self._thread not in {None, current_thread()} or id(optimizer) not in self._stack:
            return
        del self._stack[self._stack.index(id(optimizer)) :]
        if is_skipped is None:
            found_inf = getattr(optimizer, "found_inf", None)  # of a GradScaler, to a fused optimizer
            is_skipped = isinstance(found_inf, torch.Tensor) and bool(found_inf.item())
        if not self._stack and self.steps is not None and not is_skipped:
            leader = self._turns.leader
            if self._turns.add(optimizer):
                if leader not in {None, self._turns.leader}:
                    self.steps.energy.forget()
                self.steps.end_step()
            self.steps.steps, self.steps.notes["a step is"] = self._turns.steps, self._turns.words

    def _is_in_thread(self) -> bool:
        """Return whether this thread is the one that trains; another one takes its place once it has ended."""
        if self._thread is None or self._thread is current_thread():
            return True
        if not self._thread.is_alive():
            self._thread = current_thread()
            self._stack.clear()
            return True
        self._other_threads.add(current_thread().ident)
        self._note_other_threads()
        return False

    def _note_other_threads(self) -> None:
        others = len(self._other_threads)
        if others and self.steps is not None:
            self.steps.notes["threads"] = f"{others} more took steps, which are not counted; their energy is in these"

    def fail(self, error: Exception) -> None:
        """Follow nothing from now on."""
        self.has_failed = True
        log_fault(self, "loops of this process are followed no more", error)

    def forget(self) -> None:
        """Forget the training under way, which is that of another process, or has ended."""
        self.steps = self._thread = None
        self._turns = OptimizerTurns()
        self._stack.clear()
        self._other_threads.clear()

    def stop(self) -> None:
        """End the training under way."""
        steps = self.steps
        self.forget()
        if steps is not None:
            steps.end()

    def _new_steps(self, optimizer: Any) -> FollowedSteps:
        # All of this takes a second to load, and most programs with torch train nothing.
        from zeus_core.monitor.no_monitor import training_monitor
        from zeus_core.monitor.windows import ZeusMonitor
        from zeus_core.pytorch.torch_world import torch_world
        from zeus_core.training.followed_steps import FollowedSteps

        world = torch_world()  # first, as all ranks must reach it
        indices = _gpus_of(optimizer) or None
        monitor = training_monitor(None, False, lambda: ZeusMonitor(gpu_indices=indices))
        return FollowedSteps(monitor, world, self.make_optimizer)


_handles: list[Any] = []
_engines: list[Patches] = []
_patches: list[Patches] = []
_follower = _Follower()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_follower.forget)


def _gpus_of(optimizer: Any) -> list[int]:
    """Return the GPUs on which the parameters of an optimizer are."""
    groups = getattr(optimizer, "param_groups", ())
    devices = {parameter.device for group in groups for parameter in group["params"]}
    return sorted({device.index or 0 for device in devices if device.type in INDEXED_TYPES})


def _before(optimizer: Any, *_: Any) -> None:
    if torch.compiler.is_compiling() and _is_whole_graph():
        return
    _begin(optimizer)


def _after(optimizer: Any, *_: Any) -> None:
    if torch.compiler.is_compiling() and _is_whole_graph():
        return
    _end(optimizer)


def _begin(optimizer: Any) -> None:
    _untraced("begin", "torch._dynamo" in sys.modules)(optimizer)


def _end(optimizer: Any) -> None:
    _untraced("end", "torch._dynamo" in sys.modules)(optimizer)


@functools.cache
def _untraced(name: str, is_compiler_loaded: bool) -> Callable[..., None]:
    """Return what calls a method of the follower, which a compiler that was loaded leaves alone with all it calls."""
    method = getattr(_follower, name)

    def call(*optimizer: Any) -> None:
        if not _is_capturing():
            method(*optimizer)

    return sys.modules["torch._dynamo"].disable(call) if is_compiler_loaded else call


def _is_capturing() -> bool:
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def _is_whole_graph() -> bool:
    """Return whether a graph is compiled that must not be broken. The compiler asks, while it compiles."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        return bool(InstructionTranslator.current_tx().one_graph)
    except Exception:
        return True


# What `torch.compiler.disable` and `assume_constant_result` set; they would load the compiler.
for _function in (_begin, _end):
    vars(_function)["_torchdynamo_disable"] = True
vars(_is_whole_graph)["_dynamo_marked_constant"] = True


def _take_model_step(take: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    skipped = getattr(engine, "skipped_steps", 0)
    _follower.begin(engine)
    result = take(engine, *args, **kwargs)
    _follower.end(engine, getattr(engine, "skipped_steps", 0) != skipped)
    return result


def _destroy_process_group(destroy: Any, group: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Destroy a process group. The ranks of the loop add up their energy before it is the group of all."""
    steps = _follower.steps
    if steps is not None and steps.has_ranks and group in {None, torch.distributed.group.WORLD}:
        end_loop()
    return destroy(group, *args, **kwargs)
