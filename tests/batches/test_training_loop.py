"""The loop of a model that no framework trains, by the contract of all loops."""

import torch

from tests.support.training_loop_contract import ACCUMULATION, BATCH, SAMPLES, Indexed, Network, TrainingLoopContract
from zeus_core.batches.pytorch import MicroBatches, UnevenBatches
from zeus_core.batches.pytorch.plain_loop import PlainLoop

STEP = BATCH * ACCUMULATION


def batches_of(network):
    return torch.utils.data.DataLoader(Indexed(), STEP)


class TestPlainLoop(TrainingLoopContract):
    def with_loop(self, folder, check):
        network = Network()
        loop = PlainLoop(network, loss_of=lambda batch: network(**batch)["loss"])
        loop.use_batch(next(iter(batches_of(network))), STEP, BATCH)
        check(loop)

    def trained(self, folder, *, micro_batch=None, uneven=False):
        network = Network()
        return self._train(network, torch.optim.Adam(network.parameters(), 0.01), micro_batch, uneven)

    def resumed(self, folder):
        first, rest = Network(), Network()
        optimizer = torch.optim.Adam(first.parameters(), 0.01)
        state = {}
        self._train(first, optimizer, None, True, stop_at=SAMPLES + STEP, state=state)
        rest.load_state_dict(first.state_dict())
        other = torch.optim.Adam(rest.parameters(), 0.01)
        other.load_state_dict(optimizer.state_dict())
        self._train(rest, other, None, True, state=state)
        return first, rest

    def _train(self, network, optimizer, micro_batch, uneven, stop_at=None, state=None):
        loss_of = lambda batch: network(**batch)["loss"]  # noqa: E731
        micro_batches = MicroBatches(network, loss_of, micro_batch or BATCH)
        own = UnevenBatches(network, [STEP]) if uneven else None
        batches = own.loader(Indexed(), shuffle=False) if own else batches_of(network)
        if state:
            batches.load_state_dict(state)
        for _ in range(state["epoch"] if state else 0, 2):
            for batch in batches:
                if own:
                    own.weighted(loss_of(batch)).backward()
                else:
                    micro_batches.backward(batch)
                optimizer.step()
                optimizer.zero_grad()
                if len(network.seen) == stop_at:
                    state.update(batches.state_dict())
                    return network
        return network
