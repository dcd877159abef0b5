"""When the own work of a step is over, and the page of the documentation about levelling, on real ranks."""

import pytest
import torch

from tests.support.pages import blocks
from tests.support.ranks import run_ranks
from zeus_core.device import SIMULATED_GPUS_VARIABLE, SimulatedGpu, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import LevellingOptimizer
from zeus_core.pytorch import report_work_end


class Noted(LevellingOptimizer):
    """Notes what happens in a step."""

    def __init__(self):
        super().__init__(ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))]))
        self.happened = []

    def on_work_end(self):
        self.happened.append("work end")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(4, 4)
        self.unused = torch.nn.Linear(4, 4)
        self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, batch):
        return self.head(self.frozen(self.used(batch))).mean()


@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_last_gradient_of_a_step_is_the_end_of_its_work(accumulated):
    levelling, model = Noted(), Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reports = report_work_end(model, optimizer, levelling)
    for _ in range(3):
        for _ in range(accumulated):
            model(torch.rand(2, 4)).backward()
            levelling.happened.append("backward")
        optimizer.step()
        optimizer.zero_grad()
    first = ["backward"] * accumulated
    later = ["backward"] * (accumulated - 1) + ["work end", "backward"]
    assert levelling.happened == first + 2 * later, "how many gradients a step has is learned from the first one"
    reports.remove()
    model(torch.rand(2, 4)).backward()
    assert levelling.happened == first + 2 * later


def test_arguments_in_another_order_are_named():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(UsageError, match="model"):
        report_work_end(optimizer, model, Noted())
    with pytest.raises(UsageError, match="levelling"):
        report_work_end(model, optimizer, None)


def train_as_on_the_page():
    torch.manual_seed(0)
    names = {"model": Model(), "batches": [torch.rand(2, 4) for _ in range(12)]}
    first, second = blocks("levelling.md")
    own = []
    block = first.replace("report_work_end(model", "count(levelling)\nreport_work_end(model")

    def count(levelling):
        real = levelling.on_work_end
        levelling.on_work_end = lambda: (own.append(1), real())

    exec(block, {**names, "count": count}, names)
    exec(second, names, names)
    return len(own), names["levelling"].result().get("levelling", "")


def test_the_page_runs_on_two_ranks(monkeypatch):
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "A100-SXM4-80GB:2")
    monkeypatch.setattr(Model, "forward", lambda self, batch: self.head(self.unused(self.used(batch))).mean())
    answers = run_ranks(2, train_as_on_the_page)
    assert [reports for reports, _ in answers] == [11, 11], "of twelve steps, all but the first"
    assert answers[0][1].startswith("SM clocks of ")
    assert answers[0][1] == answers[1][1]
