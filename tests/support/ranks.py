"""Several real processes, forked or spawned, that find each other as those of torchrun do."""

import json
import multiprocessing
import multiprocessing.connection
import os
import sys
from collections.abc import Iterator

import torch._dynamo  # or each rank imports it itself
import torch.distributed
import torch.multiprocessing

from tests.support.ports import free_port


def torchrun_environments(count: int) -> Iterator[dict[str, str]]:
    """Return the environment that torchrun gives each rank."""
    port = free_port()
    for rank in range(count):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        rest = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        yield {name: str(value) for name, value in {**ranks, **rest}.items()}


def run_ranks(count, rank_main, *arguments):
    """Run a function in forked processes, set up as torchrun does; returns what each returned, by rank.

    When one ends without a result, the others are ended too, and the test fails at once.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_run_rank, args=(environment, sender, rank_main, arguments))
        for environment, (_, sender) in zip(torchrun_environments(count), pipes, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        answers = [_result_of(process, receiver) for process, (receiver, _) in zip(processes, pipes, strict=True)]
        for process in processes:
            process.join(240)
            assert process.exitcode == 0
        return answers
    finally:
        for process in processes:
            process.kill()


def _result_of(process, receiver):
    multiprocessing.connection.wait([receiver, process.sentinel])
    assert receiver.poll(), "a rank has ended without a result: its traceback is in the output"
    return receiver.recv()


def _run_rank(environment, result, rank_main, arguments):
    os.environ.update(environment)
    state = sys.modules.get("accelerate.state")
    if state is not None:  # of a test before this one, in the process that was forked: no rank would join the others
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
    result.send(rank_main(*arguments))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def spawn_ranks(count, folder, rank_main, *arguments):
    """Run a function in processes of `torch.multiprocessing.spawn`; returns what each returned, in JSON types.

    No launcher has told them which of the GPUs is theirs.
    """
    environments = list(torchrun_environments(count))
    torch.multiprocessing.spawn(_run_spawned, args=(environments, folder, rank_main, arguments), nprocs=count)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(count)]


def _run_spawned(rank, environments, folder, rank_main, arguments):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        os.environ[name] = environments[rank][name]
    (folder / f"rank-{rank}.json").write_text(json.dumps(rank_main(*arguments)))
    torch.distributed.destroy_process_group()


def joules_of_rows(account, gpu_count, highest_limit_watts):
    """Return the energy of all rows of an account, of which none may be more than the GPUs can draw."""
    for name, tally in {**account.activities, "total": account.total}.items():
        most = 1.1 * highest_limit_watts * gpu_count * tally.seconds
        assert 0 <= tally.energy_joules <= most + 0.01, f"{name}: {tally}"
    return sum(tally.energy_joules for tally in account.activities.values())
