"""Four ranks of DeepSpeed with Perseus, which train until they are killed. They are forks of one program."""

from tests.support.ranks import torchrun_environments

__all__ = ["make_perseus_program", "rank_processes"]

_PROGRAM = """
    import os
    os.environ["DS_ACCELERATOR"] = "cpu"
    from tests.support.hooks import be_patient
    be_patient()
    from datetime import timedelta
    import deepspeed
    import deepspeed.ops
    import torch
    import zeus_deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # which would be compiled first, for a minute
    from tests.deepspeed.engines import batches, make_engine, make_module
    torch.set_num_threads(1)

    def train(environment):
        os.environ.update(environment)
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, timeout=timedelta(seconds=240))
        perseus = {"enabled": True, "warmup_steps": 1, "profile_instructions": 4}
        engine = make_engine(make_module(4), zeus_deepspeed.initialize, perseus=perseus)
        data = batches()
        while True:
            engine.train_batch(data)

    for environment in ENVIRONMENTS:  # forked, as DeepSpeed takes long to import
        child = os.fork()
        if child == 0:
            try:
                train(environment)
            finally:
                os._exit(1)
        print("rank", child, flush=True)
    for _ in range(4):
        os.wait()
"""


def make_perseus_program():
    """Return the program, with a free port to meet at."""
    return _PROGRAM.replace("ENVIRONMENTS", repr(list(torchrun_environments(4))))


def rank_processes(process):
    """Return the process ids of the four ranks."""
    ranks = []
    while len(ranks) < 4:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        ranks += [int(line.split()[1])] if line.startswith("rank ") else []  # DeepSpeed prints there too
    return ranks
