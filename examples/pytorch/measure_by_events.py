"""The same as measure.py without `with` blocks, for loops that have no place for them.

python examples/pytorch/measure_by_events.py --simulate A100-SXM4-80GB
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

    energy = TrainingEnergy(monitor)
    energy.on_train_begin()  # or on_train_begin(step), in a resumed training
    try:
        for batch in islice(batches, arguments.steps):
            energy.on_step_begin()
            loss = model(batch.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            energy.on_step_end()
            energy.count(samples=len(batch))
        energy.on_pause(Activity.EVALUATION)
        evaluate(model, evaluation_batches, device)
        energy.on_resume()
        energy.finish()  # the summary, which all ranks compute together; not after an exception
    finally:
        energy.on_train_end()
    print(energy.summary)


if __name__ == "__main__":
    main()
