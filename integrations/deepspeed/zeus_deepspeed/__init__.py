"""Perseus, per-stage clock plans for DeepSpeed's PipelineEngine. In preparation: this version holds no hook yet."""

__all__: list[str] = []
