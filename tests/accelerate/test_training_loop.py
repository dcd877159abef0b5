"""The loop of an accelerator, by the contract of all loops."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.support.training_loop_contract import ACCUMULATION, BATCH, SAMPLES, Indexed, Network, TrainingLoopContract
from zeus_core.batches.pytorch.micro_batch import choose_micro_batch
from zeus_huggingface.accelerate.batches import UnevenBatches
from zeus_huggingface.accelerate.batches.accelerate_loop import AccelerateLoop


class TestAccelerateLoop(TrainingLoopContract):
    def with_loop(self, folder, check):
        check(AccelerateLoop(self._prepared(folder)[0]))

    def trained(self, folder, *, micro_batch=None, uneven=False):
        accelerator, network, optimizer, batches = self._prepared(folder)
        if uneven:
            UnevenBatches(accelerator, [BATCH])
        loop = AccelerateLoop(accelerator)
        loop.use(choose_micro_batch(loop, micro_batch or BATCH))
        return self._train(accelerator, network, optimizer, batches)

    def resumed(self, folder):
        accelerator, first, optimizer, batches = self._prepared(folder)
        UnevenBatches(accelerator, [BATCH])
        self._train(accelerator, first, optimizer, batches, stop_at=SAMPLES + BATCH * ACCUMULATION)
        accelerator.save_state(folder / "state")
        accelerator, rest, optimizer, batches = self._prepared(folder)
        UnevenBatches(accelerator, [BATCH])
        accelerator.load_state(folder / "state")
        return first, self._train(
            accelerator, rest, optimizer, accelerator.skip_first_batches(batches, ACCUMULATION), epochs=1
        )

    def _prepared(self, folder, accumulation=ACCUMULATION):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        network = Network()
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
        return accelerator, *accelerator.prepare(network, optimizer, DataLoader(Indexed(), BATCH))

    def _train(self, accelerator, network, optimizer, batches, stop_at=None, epochs=2):
        for _ in range(epochs):
            for batch in batches:
                with accelerator.accumulate(network):
                    accelerator.backward(network(**batch)["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
                if len(network.seen) == stop_at:
                    return network
        return network

    def test_the_last_step_counts_alike_after_skipped_batches(self, tmp_path):
        """An epoch of 24 samples has steps of 10, 10 and 4."""
        networks = []
        for skips in (False, True):
            accelerator, network, optimizer, batches = self._prepared(tmp_path, accumulation=5)
            loop = AccelerateLoop(accelerator)
            loop.use(choose_micro_batch(loop, 10))
            if skips:
                self._train(accelerator, network, optimizer, batches, stop_at=10)
                batches = accelerator.skip_first_batches(batches, 1)
            networks.append(self._train(accelerator, network, optimizer, batches, epochs=1))
            loop.undo()
        assert networks[0].seen == networks[1].seen == list(range(SAMPLES))
        assert torch.allclose(networks[0].weights, networks[1].weights, atol=1e-6)
