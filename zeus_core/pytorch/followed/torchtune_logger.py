"""The energy of a recipe of torchtune, as the `metric_logger` of its configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from zeus_core.adapters import contained
from zeus_core.pytorch.followed.followed_optimizers import end_loop, follow_optimizers, followed_energy

_logger = logging.getLogger(__name__)


class TorchtuneLogger:
    """Adds the energy to what another logger of torchtune logs.

        metric_logger:
          _component_: zeus_core.pytorch.TorchtuneLogger
          logger:
            _component_: torchtune.training.metric_logging.DiskLogger
            log_dir: ${output_dir}/logs

    The names are those of `LOG_METRICS`, such as `energy_j`. The result is shown when the recipe closes its logger.
    In a job of several ranks only the first has a logger, and nothing is added: use `zeus-core run --trainer`.

    Args:
        logger: A logger of torchtune, or its configuration.

    Raises:
        ImportError: `logger` is a configuration, and torchtune is not installed.
    """

    def __init__(self, logger: Any) -> None:
        if isinstance(logger, Mapping):
            from omegaconf import OmegaConf
            from torchtune.config import instantiate

            logger = instantiate(OmegaConf.create(dict(logger)))
        self._logger = logger
        distributed = torch.distributed
        self._is_alone = not distributed.is_initialized() or distributed.get_world_size() == 1
        if self._is_alone:
            follow_optimizers()
        else:
            _logger.warning("the energy is not logged in a job of several ranks; zeus-core run --trainer shows it")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        """Log values, and the energy."""
        self._logger.log_dict({**self._values(), **payload}, step)

    def close(self) -> None:
        """Show the result, and close the logger."""
        if self._is_alone:
            self._end()
        self._logger.close()

    @contained(default=dict[str, float])
    def _values(self) -> dict[str, float]:
        energy = followed_energy() if self._is_alone else None
        return {} if energy is None else energy.log()

    @contained
    def _end(self) -> None:
        end_loop()
