"""The micro-batch of any training loop: whether another one may be used, and the probes that choose it."""

from __future__ import annotations

import gc
import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from zeus_core.batches import MicroBatchOptimizer
from zeus_core.batches.micro_batch_optimizer import STAYS
from zeus_core.batches.micro_batch_search import indivisible
from zeus_core.batches.pytorch.kept_state import kept_state
from zeus_core.batches.pytorch.training_loop import TrainingLoop
from zeus_core.ports.accelerator import gpu_modules
from zeus_core.pytorch.work_facts import facts_of_models
from zeus_core.units import number_text

_logger = logging.getLogger(__name__)

# The texts of other errors that mean it, as accelerate knows them (`should_reduce_batch_size`).
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_ALLOC_FAILED")

# Models and losses in which the samples of a batch are compared with each other.
_CONTRASTIVE = (
    *("CLIPModel", "SiglipModel", "AlignModel", "AltCLIPModel", "BlipModel", "ChineseCLIPModel", "ClapModel"),
    *("GroupViTModel", "OwlViTModel", "XCLIPModel", "VisionTextDualEncoderModel", "FlavaForPreTraining"),
    *("MultipleNegativesRankingLoss", "MultipleNegativesSymmetricRankingLoss", "GISTEmbedLoss", "CoSENTLoss"),
    *("BatchAllTripletLoss", "BatchHardTripletLoss", "BatchSemiHardTripletLoss", "MegaBatchMarginLoss", "AnglELoss"),
)

# How far the loss of the same samples may differ between two micro-batches by rounding, relatively. Means of means on
# padded data differ by 1e-3 and more, batch norm and contrastive losses by 1e-1.
_MAX_DIFFERENCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_MAX_HALF_DIFFERENCE = 5e-3  # of sums whose terms have 8 to 11 bits

_STATES_PER_PARAMETER = {"betas": 2, "momentum": 1, "alpha": 1}  # tensors an optimizer with this argument makes


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is used up."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def _coupling_of(model: torch.nn.Module) -> str | None:
    """Return, for people, the part of a model by which the loss depends on the micro-batch; None if none is known."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        where = f"{kind} at {name}" if name else kind
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            return f"{where} normalizes over the micro-batch"
        if kind in _CONTRASTIVE:
            return f"{where} compares the samples of a micro-batch with each other"
        config = getattr(module, "config", None)
        if getattr(config, "output_router_logits", False) and getattr(config, "router_aux_loss_coef", 0):
            return f"{where} balances its experts over the micro-batch (output_router_logits)"
    return None


def warn_of_dropout(models: Iterable[torch.nn.Module], original: int, size: int) -> None:
    """Warn if the random numbers of some models depend on the micro-batch, and it changes."""
    modules = [module for model in models for module in model.modules()]
    if size != original and any(isinstance(module, _DropoutNd) and module.p > 0 for module in modules):
        _logger.warning(
            "the model has dropout, whose random numbers depend on the micro-batch: with %d in place of %d the losses "
            "are those of another seed",
            *(size, original),
        )


def _dependence(
    sizes: Sequence[int], losses: Sequence[float], models: Iterable[torch.nn.Module], is_mixed: bool = False
) -> str | None:
    """Return, for people, how the loss of the same samples depends on the micro-batch; None if only by rounding.

    Args:
        sizes: Two sizes.
        losses: The losses with them.
        models: The models that computed them.
        is_mixed: Whether they compute in half precision, also with parameters in another one.
    """
    kinds = {parameter.dtype for model in models for parameter in model.parameters()}
    if is_mixed:
        kinds.add(torch.float16)
    bound = max((_MAX_DIFFERENCE.get(kind, _MAX_HALF_DIFFERENCE) for kind in kinds), default=_MAX_HALF_DIFFERENCE)
    first, second = losses
    if abs(first - second) <= bound * max(abs(first), abs(second)):
        return None
    return (
        f"the loss of a step depends on it: {number_text(first, 6)} with {sizes[0]}, and {number_text(second, 6)} "
        f"with {sizes[1]} samples "
        "(a mean of means, or a loss or layer that compares samples)"
    )


def _ballast(optimizer: Any, device: torch.device) -> list[torch.Tensor]:
    """Allocate the memory that an optimizer will need from its first step on; nothing on a CPU, or after that step."""
    if device.type == "cpu" or getattr(optimizer, "state", None):
        return []
    states = max((count for name, count in _STATES_PER_PARAMETER.items() if optimizer.defaults.get(name)), default=0)
    return [
        torch.empty_like(parameter, device=device)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
        for _ in range(states)
    ]


class _StepPasses:
    """The passes of the steps of a loop, on the same samples for every probe.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._samples = loop.samples()
        self._size = 0
        self._step: Sequence[Any] = ()
        self._next: Iterator[Any] = iter(())

    def run(self, size: int) -> None:
        """Run the passes of a micro-batch of this size; first, of one of the largest samples."""
        if size != self._size:
            self.release()
            for model in self._loop.models:
                model.train()
            self._size, self._step = size, self._samples.batches(size)
            self._next = itertools.cycle(self._step)
            batch = self._samples.largest(size)
        else:
            batch = next(self._next)
        self._loop.train_on(batch, self._step)

    def check(self, sizes: tuple[int, int]) -> str | None:
        """Return, for people, how the loss depends on the micro-batch; None if it is the same but for rounding."""
        losses = [self._loss(size) for size in sizes]
        self.release()
        return _dependence(sizes, losses, self._loop.models, self._loop.is_mixed)

    def release(self) -> None:
        """Forget the batches, and release the memory of a failed pass."""
        self._size, self._step, self._next = 0, (), iter(())
        drop_gradients(self._loop.models)

    @torch.no_grad()
    def _loss(self, size: int) -> float:
        """Return the loss of a step, without dropout."""
        for model in self._loop.models:
            model.eval()
        step = self._samples.batches(size)
        return math.fsum(float(self._loop.loss_of(batch, step)) for batch in step)


def choose_micro_batch(loop: TrainingLoop, setting: int | MicroBatchOptimizer | None) -> int:
    """Return the micro-batch for a loop that is prepared, and has not begun. A collective call.

    Args:
        loop: The loop.
        setting: A size, or the optimizer that chooses one; the original size if None.
    """
    if setting is None or is_refused(loop, setting):
        return loop.batch_size
    size = setting if isinstance(setting, int) else probe_micro_batch(loop, setting)
    warn_of_dropout(loop.models, loop.batch_size, size)
    return size


def is_refused(loop: TrainingLoop, setting: int | MicroBatchOptimizer) -> bool:
    """Return whether the original micro-batch of a loop stays, and say why."""
    size = setting if isinstance(setting, int) else None
    reason = loop.obstacle(size) or indivisible(setting, loop.samples_per_step)
    reason = reason or next(filter(None, map(_coupling_of, loop.models)), None)
    if reason is None:
        return False
    if isinstance(setting, int):
        _logger.warning(STAYS, reason)
    else:
        setting.refuse(loop.samples_per_step, loop.batch_size, reason)
    return True


def probe_micro_batch(loop: TrainingLoop, optimizer: MicroBatchOptimizer) -> int:
    """Return the best micro-batch for a loop, and leave the loop as it was. A collective call."""
    with kept_state(torch.nn.ModuleList(loop.models)), loop.probing():
        passes = _StepPasses(loop)
        ballast = [tensor for one in loop.optimizers for tensor in _ballast(one, loop.device)]
        try:
            return optimizer.choose(
                loop.samples_per_step,
                loop.batch_size,
                passes.run,
                sizes=loop.sizes,
                check=passes.check,
                work={**facts_of_models(loop.models), **loop.work},
                world=loop.world,
                is_out_of_memory=is_out_of_memory,
                release=passes.release,
            )
        finally:
            del ballast
            passes.release()


class MicroBatchLoop(TrainingLoop):
    """A loop that gets its micro-batch when all is prepared, before it begins."""

    setting: int | MicroBatchOptimizer | None
    """The micro-batch, or the optimizer that chooses one; None where the original size stays."""

    @abstractmethod
    def use(self, size: int) -> None:
        """Train with this micro-batch until `undo`."""

    def use_best(self) -> None:
        """Train with the micro-batch of the setting until `undo`: a collective call."""
        self.use(choose_micro_batch(self, self.setting))

    def note_end(self, error: BaseException | None) -> None:
        """Note the error, if any, by which training ended: a size that is out of memory is not chosen again."""
        setting = self.setting
        if isinstance(setting, MicroBatchOptimizer) and setting.chosen and error and is_out_of_memory(error):
            setting.tell_out_of_memory(setting.chosen)


def drop_gradients(models: Iterable[torch.nn.Module]) -> None:
    """Drop the gradients of some models, and give memory that nothing uses any more back to the device."""
    for model in models:
        for parameter in model.parameters():
            parameter.grad = None
    gc.collect()
    for module in (*gpu_modules().values(), *([torch.mps] if torch.backends.mps.is_available() else [])):
        module.empty_cache()
