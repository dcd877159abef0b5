"""Five lines that show where the energy of a training loop goes: the numbered ones.

python examples/pytorch/measure.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

from itertools import islice

import torch
from toy import LanguageModel, argument_parser, evaluate, prepare, simulate, training_and_evaluation_batches

from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy


def main() -> None:
    arguments = argument_parser(__doc__ or "").parse_args()
    prepare(arguments)
    device = torch.device("cpu" if arguments.simulate else "cuda:0")
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches, evaluation_batches = training_and_evaluation_batches()

    monitor = ZeusMonitor(gpu_indices=[0])
    if arguments.simulate:
        simulate(model, monitor)

    with TrainingEnergy(monitor) as energy:  # 1
        for step, batch in enumerate(islice(batches, arguments.steps), start=1):
            with energy.step(samples=len(batch)):  # 2
                loss = model(batch.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if step % 25 == 0:
                print(f"step {step}: loss {loss.item():.3f}", energy.log())  # 3
        with energy.during(Activity.EVALUATION):  # 4
            evaluate(model, evaluation_batches, device)
    print(energy.summary)  # 5


if __name__ == "__main__":
    main()
