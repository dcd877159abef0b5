"""A training loop written by hand: where its energy goes, and a GPU power limit chosen meanwhile.

With `--simulate` the model trains on the CPU while a simulated GPU determines time and energy. Everything is written
under `--output`. Interrupt it, run it again, and it continues where it was.

    python examples/pytorch/train.py --simulate A100-SXM4-80GB
"""

from __future__ import annotations

import itertools

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
    arguments.output.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.output / "checkpoint.pt"

    monitor = ZeusMonitor(gpu_indices=[0])
    if arguments.simulate:
        simulate(model, monitor)

    energy = TrainingEnergy(monitor, optimizer="auto", folder=arguments.output)

    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        energy.load_state_dict(state["energy"])

    energy.on_train_begin(step)
    try:
        for batch in itertools.islice(batches, arguments.steps - step):
            with energy.step(samples=len(batch)):
                loss = model(batch.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % 25 == 0:
                values = energy.log()
                print(f"step {step} of {arguments.steps}: loss {loss.item():.3f}, {values.get('power_w', 0.0):.0f} W")
            if step % 50 == 0:
                with energy.during(Activity.EVALUATION):
                    evaluate(model, evaluation_batches, device)
                with energy.during(Activity.CHECKPOINT):
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "step": step, "energy": energy.state_dict()}, checkpoint)
        energy.finish()
    finally:
        energy.on_train_end()
    print(energy.summary)


if __name__ == "__main__":
    main()
