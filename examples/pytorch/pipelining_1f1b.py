"""A schedule of torch.distributed.pipelining, whose clocks are planned during training.

torchrun --nproc-per-node 2 examples/pytorch/pipelining_1f1b.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

import torch
import torch.distributed
from pipeline_toy import MICROBATCHES, SETTINGS, loss_of, make_batch, parsed_arguments, report, set_up, steps_to_train
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from zeus_core.pipeline.taps import pipelining


def main() -> None:
    arguments = parsed_arguments(__doc__ or "")
    module, device, monitor = set_up(arguments)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    stage = PipelineStage(module, rank, size, device)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    attached = pipelining.attach(schedule, monitor, SETTINGS, identity={"model": "toy"})

    optimizer = torch.optim.AdamW(module.parameters(), 3e-3)
    for _ in steps_to_train(arguments.steps, attached.optimizer):
        tokens, targets = make_batch(device)
        schedule.step(*([tokens] if stage.is_first else []), target=targets if stage.is_last else None)
        optimizer.step()
        optimizer.zero_grad()
    report(attached.optimizer)
    attached.detach()  # restores the clocks, as does the end of the process
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
