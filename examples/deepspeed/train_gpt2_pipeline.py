"""Train a small GPT-2 as a DeepSpeed pipeline of four stages, and plan the clocks of its GPUs meanwhile.

The pipeline is real, on the CPU and over gloo. Each rank has a simulated GPU, which determines time and energy.
Everything is written under `--output`. Exits with 1 if no plan was measured.

    python examples/deepspeed/train_gpt2_pipeline.py
    torchrun --nproc-per-node 4 examples/deepspeed/train_gpt2_pipeline.py

Your own training script needs only the import of `zeus_deepspeed.auto`, and the `"perseus"` block of ds_config.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import multiprocessing.connection
import os
import socket
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deepspeed
import torch
from gpt2 import make_module, microbatches, simulate
from outcome import Outcome, StepLog, clock_under_load_mhz, gather_outcome

import zeus_deepspeed.auto  # noqa: F401 - the one line: enables the "perseus" block of ds_config.json
from zeus_core.device import discover_gpus
from zeus_core.errors import UsageError
from zeus_core.pytorch import torch_world

STAGES = 4
GPU_MODEL = "A100-SXM4-80GB"


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=Path("zeus-deepspeed"), help="folder for all files (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=200, help="at most; ends once a plan was measured (%(default)s)")
    parser.add_argument("--block-seconds", type=float, default=0.015, help="forward pass of a block (%(default)s)")
    parser.add_argument(
        "--activation-checkpointing", action="store_true", help="recompute the forward pass in each backward pass"
    )
    config = Path(__file__).parent / "ds_config.json"
    parser.add_argument("--config", type=Path, default=config, help="configuration of DeepSpeed (ds_config.json)")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # set by the launcher of DeepSpeed
    return parser.parse_args()


def main() -> int:
    arguments = parsed_arguments()
    if "RANK" not in os.environ:
        return start_ranks()
    try:
        return train(arguments)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")  # at once: several ranks may have the same to say
        return 2


def start_ranks() -> int:
    """Do what a launcher does: start a process for each rank. When one fails, the others are terminated."""
    import torch._dynamo  # noqa: F401 - or each rank would import it itself, which takes a while

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run_rank, args=(rank, port), daemon=True) for rank in range(STAGES)]
    for process in processes:
        process.start()
    running = {process.sentinel: process for process in processes}
    code = 0
    while running and code == 0:
        for sentinel in multiprocessing.connection.wait(list(running)):
            ended = running.pop(sentinel)
            ended.join()  # its exit code may not be known before
            code = code or ended.exitcode
    for process in running.values():
        process.terminate()
        process.join()
    return code


def run_rank(rank: int, port: int) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": STAGES, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    sys.exit(main())


def train(arguments: argparse.Namespace) -> int:
    rank = int(os.environ["RANK"])
    be_quiet(is_first=rank == 0)
    os.environ.setdefault("ZEUS_SIMULATED_GPUS", f"{GPU_MODEL}:{os.environ['WORLD_SIZE']}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for a minute
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)

    with contextlib.redirect_stdout(io.StringIO()):  # DeepSpeed lists the layers
        module = make_module(STAGES)
    parameters, config = list(module.parameters()), read_config(arguments)
    engine, *_ = deepspeed.initialize(model=module, model_parameters=parameters, config=config)
    perseus = getattr(engine, "perseus", None)
    if perseus is None:  # the log says why
        return 1

    gpu = discover_gpus()[engine.local_rank]
    simulate(module, gpu, arguments.block_seconds, 3.0 if arguments.activation_checkpointing else 2.0)
    if rank == 0:
        print(f"at most {arguments.steps} iterations of {STAGES} stages; the clocks are planned meanwhile", flush=True)
    log = StepLog(gpu, is_shown=rank == 0)
    batches = microbatches(engine.train_micro_batch_size_per_gpu(), seed=engine.grid.get_data_parallel_id())
    optimizer = perseus.optimizer
    for _ in range(arguments.steps):
        with log.step(optimizer.phase.value):
            log.losses.append(float(engine.train_batch(batches)))
        if optimizer.measured is not None or optimizer.phase.is_without_plan:
            break  # this is a demonstration; real training would continue with its plan

    gather = torch_world().gather
    outcome = gather_outcome(engine, log, gather)
    engine.destroy()  # restores the clocks, as does the end of the process
    clocks_mhz = gather(clock_under_load_mhz(gpu))
    torch.distributed.destroy_process_group()
    if outcome is None:
        if rank == 0:
            print("no plan was measured", file=sys.stderr)
        return 1
    if rank == 0:
        report(outcome, clocks_mhz, arguments)
    return 0


def be_quiet(is_first: bool) -> None:
    """Only the first rank logs what is worth knowing."""
    logging.basicConfig(level=logging.WARNING if is_first else logging.ERROR, format="%(levelname)s: %(message)s")
    logging.getLogger("zeus_core").setLevel(logging.INFO if is_first else logging.ERROR)
    deepspeed.utils.logger.setLevel(logging.ERROR)


def read_config(arguments: argparse.Namespace) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(arguments.config.read_text())
    if arguments.activation_checkpointing:
        config["pipeline"]["activation_checkpoint_interval"] = 1
    return config


def report(outcome: Outcome, clocks_mhz: list[int], arguments: argparse.Namespace) -> None:
    arguments.output.mkdir(parents=True, exist_ok=True)
    print(outcome)
    print(f"\nclocks under load after training (MHz): {', '.join(map(str, clocks_mhz))}")
    if outcome.profile is not None:
        profile = outcome.write(arguments.output / "profile.json")
        print(f"profile: {profile}")
        print(f"pictures of its plans: zeus-core plan {profile} --microbatches {outcome.microbatches} --output FOLDER")
    longer = f"{outcome.slowdown_factor - 1:+.1%}"
    print(f"The plan saves {outcome.saving_fraction:.1%} of the energy of an iteration, for {longer} time.")


if __name__ == "__main__":
    sys.exit(main())
