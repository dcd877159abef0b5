"""Several real processes, forked, that find each other as those of torchrun do."""

import multiprocessing
import os
import socket
from collections.abc import Iterator

import torch.distributed


def torchrun_environments(count: int) -> Iterator[dict[str, str]]:
    """Return the environment that torchrun gives each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for rank in range(count):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        rest = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        yield {name: str(value) for name, value in {**ranks, **rest}.items()}


def run_ranks(count, rank_main, *arguments):
    """Run a function in forked processes, set up as torchrun does; returns what each returned, by rank."""
    context = multiprocessing.get_context("fork")
    results = [context.SimpleQueue() for _ in range(count)]
    processes = [
        context.Process(target=_run_rank, args=(environment, result, rank_main, arguments))
        for environment, result in zip(torchrun_environments(count), results, strict=True)
    ]
    for process in processes:
        process.start()
    answers = [result.get() for result in results]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return answers


def _run_rank(environment, result, rank_main, arguments):
    os.environ.update(environment)
    result.put(rank_main(*arguments))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
