"""Facts about an engine. Only this module and `_tap` use private DeepSpeed names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from zeus_core.errors import ZeusError
from zeus_core.pipeline.optimizer import PipelineRank


def release() -> str:
    """Return the installed release of DeepSpeed."""
    return metadata.version("deepspeed")


def config_of(engine: Any) -> Mapping[str, Any]:
    """Return the DeepSpeed configuration of an engine, as its user wrote it.

    Raises:
        ZeusError: This release of DeepSpeed keeps it elsewhere.
    """
    try:
        config: Mapping[str, Any] = engine._config._param_dict
    except AttributeError as error:
        raise ZeusError(
            f"DeepSpeed {release()} has no engine._config._param_dict, where Perseus reads its configuration; "
            "use another release of DeepSpeed, or a newer zeus-core"
        ) from error
    return config


def is_pipeline(engine: Any) -> bool:
    """Return whether an engine runs a pipeline."""
    from deepspeed.runtime.pipe.engine import PipelineEngine

    return isinstance(engine, PipelineEngine)


def pipeline_rank_of(engine: Any) -> PipelineRank:
    """Read the position of this rank among the pipelines of its job."""
    return PipelineRank(rank=engine.stage_id, pipeline=engine.grid.get_data_parallel_id())


def stages_by_phase(engine: Any) -> dict[int, int]:
    """Return the stage of this rank for each `phase` of its instructions.

    Only DualPipeV has two: its pipeline runs down the ranks and up again, so this rank has a second stage, counted from
    the end.
    """
    return {0: engine.stage_id, 1: 2 * engine.num_stages - 1 - engine.stage_id}


def identity_of(engine: Any) -> dict[str, str | int | float]:
    """Return the known facts that the times and energies of this rank's instructions depend on."""
    module = engine.module
    parameters = list(module.parameters())
    bounds = getattr(module, "phase_bounds", [(module._local_start, module._local_stop)])  # DualPipeV has two
    return {
        "deepspeed": release(),
        "torch": metadata.version("torch"),
        "stages": engine.num_stages,
        "stage": engine.stage_id,
        "layers": ", ".join(f"{start}-{stop}" for start, stop in bounds),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "dtype": ", ".join(sorted({str(parameter.dtype) for parameter in parameters})),
        "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
        "activation_checkpoint_interval": module.activation_checkpoint_interval,
        "zero_stage": int(engine.zero_optimization_stage()),
    }
