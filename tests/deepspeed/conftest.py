import contextlib
import os
import warnings
from pathlib import Path

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # older releases are behind with torch and pydantic
    import deepspeed.ops
    import deepspeed.runtime.pipe.engine
    import deepspeed.runtime.zero.stage_1_and_2

    # What an engine imports when it is made: not by each rank, which is a fork of this process.
    import torch._dynamo  # noqa: F401

    with contextlib.suppress(ImportError):  # of newer releases
        import deepspeed.module_inject.auto_ep_layer
        import deepspeed.runtime.zero.muon.muon_optimizer

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # which would be compiled first, for a minute

# DeepSpeed's own, and torch's of DeepSpeed; none is about us.
IGNORED = [
    "ignore::DeprecationWarning:deepspeed",
    "ignore::DeprecationWarning:torch",
    "ignore::FutureWarning:deepspeed",
    "ignore::FutureWarning:torch",
    "ignore::UserWarning:torch",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            for warning in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(warning), append=False)
