"""A loop of several processes, with DDP or FSDP: the energy of all of them, and one power limit for all.

torchrun --nproc-per-node 2 examples/pytorch/train_parallel.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

import os
from itertools import islice

import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from toy import LanguageModel, argument_parser, evaluate, prepare, simulate, training_and_evaluation_batches

from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import torch_world
from zeus_core.training import TrainingEnergy


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp", help="how (%(default)s)")
    arguments = parser.parse_args()
    prepare(arguments)
    device = torch.device("cpu" if arguments.simulate else f"cuda:{os.environ['LOCAL_RANK']}")
    model: torch.nn.Module = LanguageModel().to(device)

    torch.distributed.init_process_group("gloo" if arguments.simulate else "nccl")
    world = torch_world()  # on all processes, like all that follows
    monitor = ZeusMonitor()  # measures the GPU of this process alone
    energy = TrainingEnergy(monitor, optimizer="auto", world=world, folder=arguments.output)

    if arguments.simulate:
        simulate(model, monitor)
    if arguments.parallel == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=init_device_mesh(device.type, (world.size,)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches, evaluation_batches = training_and_evaluation_batches(world.rank, world.size)

    with energy:
        for step, batch in enumerate(islice(batches, arguments.steps), start=1):
            with energy.step(samples=len(batch)):
                loss = model(batch.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if step % 25 == 0:
                values = energy.log()  # on all processes, though only one prints
                if world.rank == 0:
                    print(f"step {step}: loss {loss.item():.3f}, {values.get('power_w', 0.0):.0f} W", flush=True)
        with energy.during(Activity.EVALUATION):
            evaluate(model, evaluation_batches, device)
    if world.rank == 0:
        print(energy.summary)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
