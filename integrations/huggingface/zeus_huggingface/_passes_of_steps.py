"""Measures what a training step of TRL does besides training, apart from it: generation, reference, rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import Trainer

from zeus_core.adapters import Patches, contained
from zeus_core.events import PASS_END, Activity, Observer, PassBegin
from zeus_core.training import TrainingEnergy

_REWARDS = "_calculate_rewards"  # of GRPO and RLOO: models, functions, and the exchange of their values


class PassHooks:
    """Attached to a trainer, reports each pass of these kinds, as TRL has them.

    | pass | seen at |
    |---|---|
    | generation | `generate` of the model that is trained; of the trainer's vLLM, if that runs on its GPUs |
    | waiting | the same calls, if vLLM is a server |
    | reference | `ref_model` |
    | reward | the models among `reward_funcs`, `reward_model`, and the method that calls all of them |

    The accelerator is synchronized at both ends of each. A reference that is the model itself with its adapters
    switched off cannot be distinguished.

    Args:
        trainer: Any trainer.
        observer: Receives the reports.
        energy: Counts the tokens of text that was generated; they are not counted if None.
    """

    def __init__(self, trainer: Trainer, observer: Observer, energy: TrainingEnergy | None) -> None:
        self._observer = observer
        self._energy = energy
        self._model: Any = trainer.model
        self._patches: list[Patches] = []
        # On the class, as a patch of the model would be copied with it, and a copy would generate with the original.
        for name in ("generate", "generate_batch"):
            self._wrap(type(self._model), name, self._generate)
        is_server = getattr(trainer, "vllm_mode", None) == "server"
        through = Activity.WAITING if is_server else Activity.GENERATION
        self._wrap(getattr(trainer, "vllm_generation", None), "generate", self._during(through))
        self._wrap(getattr(trainer, "llm", None), "generate", self._during(Activity.GENERATION))  # of TRL before 0.27
        for name in ("generate", "chat"):
            self._wrap(getattr(trainer, "vllm_client", None), name, self._during(Activity.WAITING))
        self._wrap(trainer, _REWARDS, self._during(Activity.REWARD))
        self._hooks: list[Any] = []
        self._watch(Activity.REFERENCE, [getattr(trainer, "ref_model", None)])
        rewards = getattr(trainer, "reward_funcs", None)
        models = list(rewards) if isinstance(rewards, list | tuple) else [rewards]
        self._watch(Activity.REWARD, [*models, getattr(trainer, "reward_model", None)])

    def detach(self) -> None:
        """Leave the models as they were."""
        for patches in self._patches:
            patches.undo()
        for hook in self._hooks:
            hook.remove()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        if callable(getattr(owner, name, None)):
            self._patches.append(Patches(owner))
            self._patches[-1].wrap(name, around)

    def _watch(self, activity: Activity, models: Sequence[Any]) -> None:
        observer = self._observer
        for model in models:
            if isinstance(model, torch.nn.Module):
                self._hooks += [
                    model.register_forward_pre_hook(lambda *_: observer.receive(PassBegin(activity))),
                    model.register_forward_hook(lambda *_: observer.receive(PASS_END), always_call=True),
                ]

    def _generate(self, generate: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if model is not self._model:
            return generate(model, *args, **kwargs)
        return self._during(Activity.GENERATION)(lambda *_, **__: generate(model, *args, **kwargs), *args, **kwargs)

    def _during(self, activity: Activity) -> Callable[..., Any]:
        """Return a wrap for a method that is such a pass."""

        def wrapped(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._observer.receive(PassBegin(activity))
            try:
                result = method(*args, **kwargs)
                if activity is Activity.GENERATION and self._energy is not None:
                    self._count(self._energy, result, args, kwargs)
                return result
            finally:
                self._observer.receive(PASS_END)

        return wrapped

    @contained
    def _count(self, energy: TrainingEnergy, generated: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Count the tokens of what was generated, by its shape alone."""
        is_decoder_separate = bool(getattr(getattr(self._model, "config", None), "is_encoder_decoder", False))
        prompt = next((kwargs[name] for name in ("inputs", "input_ids") if kwargs.get(name) is not None), None)
        if prompt is None and "inputs_embeds" not in kwargs:
            prompt = next(iter(args), None)
        energy.count(generated_tokens=_tokens_in(generated, prompt, is_decoder_separate))


def _tokens_in(generated: Any, prompt: Any, is_decoder_separate: bool) -> int:
    """Return the tokens in what `generate` of transformers, of TRL's vLLM or of vLLM has returned; 0 if unknown."""
    texts = getattr(generated, "sequences", generated)
    if isinstance(texts, torch.Tensor) and texts.ndim == 2:
        given = prompt.shape[-1] if isinstance(prompt, torch.Tensor) else 0
        return int(texts.shape[0] * max(texts.shape[1] - (1 if is_decoder_separate else given), 0))
    if isinstance(generated, tuple) and len(generated) > 1:  # prompts, completions, ...
        return sum(map(len, generated[1]))
    if isinstance(generated, list):
        return sum(len(text.token_ids) for request in generated for text in request.outputs)
    return 0
