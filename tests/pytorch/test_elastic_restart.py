"""A job of torchrun that is started again with another number of ranks, on simulated GPUs."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

MODELS = ["A100-SXM4-80GB", "V100-SXM2-32GB", "A100-SXM4-80GB"]

PROGRAM = """
    import json, os
    from pathlib import Path
    from tests.batches.test_batch_allocation import STEPS, allocate_rank

    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    result = allocate_rank(MODELS, FOLDER, {"limit_fractions": [1.0, 0.7]}, steps=STEPS if ranks == 2 else 3)
    Path(FOLDER, f"{ranks}-{rank}.json").write_text(json.dumps(result))
"""


def launch(folder, ranks):
    program = folder / "training.py"
    program.write_text(textwrap.dedent(PROGRAM).replace("FOLDER", repr(str(folder))).replace("MODELS", repr(MODELS)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command += ["--nproc-per-node", str(ranks), str(program)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"{ranks}-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_restarted_ranks_begin_with_the_plan_that_kept_profiles_give(tmp_path):
    assert [result["at once"] for result in launch(tmp_path, 2)] == [False, False]
    results = launch(tmp_path, 3)
    for rank, result in enumerate(results):
        assert result["at once"]
        share = result["plan"]["ranks"][rank]
        assert {len(step) for step in result["seen"]} == {share["batch"]}, "from the first step on"
        original, limit, at_the_end = result["limits"]
        assert (limit, at_the_end) == (share["setting"], original)
    first, second, third = results[0]["batches"]
    assert first + second + third == 16
    assert min(first, third) > second, "the quick ones get more"
