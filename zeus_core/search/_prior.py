"""The prior of the adaptive search: shapes of curves that were measured, and shapes that GPUs can have."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from zeus_core.search._curves import FIELDS, Array

PRIOR_PATH = Path(__file__).with_name("curve_prior.csv")
"""The file that ships with the package."""

PHYSICS = "physics"
_PHYSICS_SHARE = 0.3  # of the probability; 0.1 to 0.6 search about equally well where the GPU is not in the file


@dataclass(frozen=True, eq=False)
class CurvePrior:
    """Shapes of curves, and their probabilities before anything is measured.

    Attributes:
        sources: For each shape, the GPU model it was measured on, or `physics`.
        parameters: One row for each shape, with the columns of `FIELDS`.
    """

    sources: tuple[str, ...]
    parameters: Array

    @cached_property
    def weights(self) -> Array:
        """The probability of each shape: the same for every GPU model, however many of its sweeps there are."""
        counts = Counter(self.sources)
        models = set(counts) - {PHYSICS}
        shares = {model: (1 - _PHYSICS_SHARE) / len(models) for model in models} | {PHYSICS: _PHYSICS_SHARE}
        weights = np.array([shares[source] / counts[source] for source in self.sources])
        return np.asarray(weights / weights.sum())

    def without(self, model: str) -> CurvePrior:
        """Return the prior of somebody who has never measured a GPU model."""
        kept = [place for place, source in enumerate(self.sources) if source != model]
        return CurvePrior(tuple(self.sources[place] for place in kept), self.parameters[kept])


@cache
def read_prior() -> CurvePrior:
    """Read the file that ships with the package."""
    with PRIOR_PATH.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    parameters = np.array([[float(row[field]) for field in FIELDS] for row in rows])
    return CurvePrior(tuple(row["source"] for row in rows), parameters)
