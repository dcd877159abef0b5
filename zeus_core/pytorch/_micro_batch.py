"""Probes of micro-batches with torch: memory, and losses that depend on the micro-batch."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

__all__ = [
    "ProbeSamples",
    "StepPasses",
    "coupling_of",
    "dependence",
    "is_out_of_memory",
    "optimizer_ballast",
    "release_memory",
    "warn_of_dropout",
]

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

# Among so many samples the largest are looked for: the first pass of a probe has them, as some batch of training may.
_POOL = 256


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is used up."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def release_memory() -> None:
    """Give memory that nothing uses any more back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def coupling_of(model: torch.nn.Module) -> str | None:
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


def dependence(
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
        f"the loss of a step depends on it: {first:.6g} with {sizes[0]}, and {second:.6g} with {sizes[1]} samples "
        "(a mean of means, or a loss or layer that compares samples)"
    )


def optimizer_ballast(optimizer: Any, device: torch.device) -> list[torch.Tensor]:
    """Allocate the memory that an optimizer will need from its first step on; nothing on a CPU, or after that step."""
    if device.type != "cuda" or getattr(optimizer, "state", None):
        return []
    states = max((count for name, count in _STATES_PER_PARAMETER.items() if optimizer.defaults.get(name)), default=0)
    return [
        torch.empty_like(parameter, device=device)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
        for _ in range(states)
    ]


class ProbeSamples:
    """The same samples for every probe, as batches of any size. Drawing them takes no random numbers of training.

    Args:
        dataset: Has a length, and samples by index.
        collate: Makes a batch of samples.
        count: The samples of a step.
        rank: This rank, which probes with samples of its own.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], count: int, rank: int = 0) -> None:
        draw = random.Random(rank)
        length = len(dataset)
        pool = draw.sample(range(length), min(max(count, _POOL), length))
        samples = [dataset[index] for index in pool]
        self._collate = collate
        self._samples = [samples[place % len(samples)] for place in range(count)]
        self._largest = sorted(samples, key=_elements, reverse=True)

    def largest(self, size: int) -> Any:
        """Return a batch of the largest samples there are."""
        return self._collate([self._largest[place % len(self._largest)] for place in range(size)])

    def batches(self, size: int) -> list[Any]:
        """Return the samples of a step as batches."""
        return [self._collate(self._samples[begin : begin + size]) for begin in range(0, len(self._samples), size)]


class StepPasses:
    """The passes of the steps of a loop, which takes the mean of the losses of its batches.

    Args:
        dataset: The training data.
        collate: Makes a batch of samples.
        batch_size: The samples of a step on this rank.
        models: The models that are trained.
        loss_of: Returns the loss of a batch.
        backward: Propagates a loss backward, divided by the batches of a step.
        is_mixed: Whether the models compute in half precision, also with parameters in another one.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        batch_size: int,
        models: Sequence[torch.nn.Module],
        loss_of: Callable[[Any], torch.Tensor],
        backward: Callable[[torch.Tensor, int], object],
        is_mixed: bool = False,
    ) -> None:
        self._samples = ProbeSamples(dataset, collate, batch_size)
        self._batch_size = batch_size
        self._models = models
        self._loss_of = loss_of
        self._backward = backward
        self._is_mixed = is_mixed
        self._size = 0
        self._next: Iterator[Any] = iter(())

    def run(self, size: int) -> None:
        """Run the passes of a micro-batch of this size; first, of one of the largest samples."""
        if size != self._size:
            self.release()
            for model in self._models:
                model.train()
            self._size, self._next = size, itertools.cycle(self._samples.batches(size))
            batch = self._samples.largest(size)
        else:
            batch = next(self._next)
        self._backward(self._loss_of(batch), self._batch_size // size)

    def check(self, sizes: tuple[int, int]) -> str | None:
        """Return, for people, how the loss depends on the micro-batch; None if it is the same but for rounding."""
        losses = [self._mean_loss(size) for size in sizes]
        return dependence(sizes, losses, self._models, self._is_mixed)

    def release(self) -> None:
        """Forget the batches, and release the memory of a failed pass."""
        self._size, self._next = 0, iter(())
        for model in self._models:
            for parameter in model.parameters():
                parameter.grad = None
        release_memory()

    @torch.no_grad()
    def _mean_loss(self, size: int) -> float:
        for model in self._models:
            model.eval()  # without dropout
        losses = [float(self._loss_of(batch)) for batch in self._samples.batches(size)]
        return math.fsum(losses) / len(losses)


def _elements(sample: Any) -> int:
    """Return how much is in a sample: the elements of its tensors, or numbers of its lists."""
    if isinstance(sample, torch.Tensor):
        return sample.numel()
    if hasattr(sample, "shape"):
        return math.prod(sample.shape)
    if isinstance(sample, dict):
        return sum(_elements(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(_elements(value) if isinstance(value, Iterable) else 1 for value in sample)
    return 1
