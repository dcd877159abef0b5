"""Passes of real torch modules on a simulated GPU."""

import pytest
import torch

from zeus_core.device import Work
from zeus_core.errors import UsageError
from zeus_core.pytorch import SimulatedBatches, SimulatedCompute

FORWARD = Work(1.0, 300.0)
BACKWARD = Work(3.0, 300.0)


class DictModel(torch.nn.Module):
    """Returns what Hugging Face models return: a loss and logits, in a mapping."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, inputs):
        logits = self.layer(inputs)
        return {"loss": logits.square().mean(), "logits": logits, "nothing": None}


def seconds_of(time_source, action):
    begin = time_source.now()
    action()
    return time_source.now() - begin


@pytest.fixture
def model():
    torch.manual_seed(0)
    return DictModel()


def test_a_forward_and_a_backward_pass_take_what_was_stated(model, gpu, time_source):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    inputs = torch.ones(2, 4)
    outputs = {}
    assert seconds_of(time_source, lambda: outputs.update(model(inputs))) == pytest.approx(1.0)
    assert seconds_of(time_source, lambda: outputs["loss"].backward()) == pytest.approx(3.0)


def test_the_backward_pass_is_twice_the_forward_pass_by_default(model, gpu, time_source):
    SimulatedCompute(model, gpu, FORWARD)
    loss = model(torch.ones(2, 4))["loss"]
    assert seconds_of(time_source, loss.backward) == pytest.approx(2.0)


def test_a_loss_outside_of_the_module_reaches_the_backward_pass_too(model, gpu, time_source):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    loss = model(torch.ones(2, 4))["logits"].sum()
    assert seconds_of(time_source, loss.backward) == pytest.approx(3.0)


def test_a_graph_kept_for_a_second_backward_pass_burns_for_each(model, gpu, time_source):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    loss = model(torch.ones(2, 4))["loss"]
    assert seconds_of(time_source, lambda: loss.backward(retain_graph=True)) == pytest.approx(3.0)
    assert seconds_of(time_source, loss.backward) == pytest.approx(3.0)


def test_without_gradients_there_is_no_backward_pass(model, gpu, time_source):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    with torch.no_grad():
        assert seconds_of(time_source, lambda: model(torch.ones(2, 4))) == pytest.approx(1.0)


def test_energy_is_burnt_where_the_passes_are(model, gpu):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    before = gpu.exact_energy_joules()
    model(torch.ones(2, 4))["loss"].backward()
    physics = gpu.preset.physics
    truth = sum(physics.operating_point(work, 350).energy_joules for work in (FORWARD, BACKWARD))
    assert gpu.exact_energy_joules() - before == pytest.approx(truth)


def test_the_real_computation_is_untouched(model, gpu):
    inputs = torch.ones(2, 4)
    expected_loss = model(inputs)["loss"]
    expected_loss.backward()
    expected = model.layer.weight.grad.clone()
    model.zero_grad()
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    loss = model(inputs)["loss"]
    loss.backward()
    assert torch.equal(loss, expected_loss)
    assert torch.equal(model.layer.weight.grad, expected)


def test_a_backward_pass_that_fails_does_not_make_the_next_one_free(model, gpu, time_source):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)

    def fail(gradient):
        raise RuntimeError("boom")

    outputs = model(torch.ones(2, 4))
    outputs["logits"].register_hook(fail)
    with pytest.raises(RuntimeError, match="boom"):
        outputs["loss"].backward()
    gpu.synchronize()
    assert seconds_of(time_source, lambda: model(torch.ones(2, 4))["loss"].backward()) == pytest.approx(4.0)


def test_detached_it_takes_no_time(model, gpu, time_source):
    compute = SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    compute.detach()
    assert seconds_of(time_source, lambda: model(torch.ones(2, 4))["loss"].backward()) == 0


def test_a_module_in_a_larger_graph_works_with_checkpointing(model, gpu, time_source):
    from torch.utils.checkpoint import checkpoint

    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    inputs = torch.ones(2, 4, requires_grad=True)
    outputs = {}

    def forward():
        outputs["loss"] = checkpoint(lambda tokens: model(tokens)["loss"], inputs, use_reentrant=False)

    assert seconds_of(time_source, forward) == pytest.approx(1.0)
    assert seconds_of(time_source, lambda: outputs["loss"].backward()) == pytest.approx(1.0 + 3.0)


def test_a_real_gpu_is_an_error(model):
    with pytest.raises(UsageError, match="only a SimulatedGpu can simulate"):
        SimulatedCompute(model, object(), FORWARD)


def joules_per_sample(model, gpu, samples):
    before = gpu.exact_energy_joules()
    model(torch.ones(samples, 4))["loss"].backward()
    return (gpu.exact_energy_joules() - before) / samples


def test_joules_per_sample_fall_with_the_batch_until_the_gpu_is_filled(model, gpu):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD, batches=SimulatedBatches(samples=64, half_samples=8.0))
    joules = [joules_per_sample(model, gpu, samples) for samples in (1, 8, 64, 512)]
    assert joules[0] > 2 * joules[1] > 2 * joules[2] > 2 * joules[3]
    assert joules[2] < 1.1 * joules[3]


def test_a_filled_gpu_takes_what_was_stated_for_the_stated_samples(model, gpu, time_source):
    SimulatedCompute(model, gpu, FORWARD, BACKWARD, batches=SimulatedBatches(samples=64))
    assert seconds_of(time_source, lambda: model(torch.ones(64, 4))["loss"].backward()) == pytest.approx(4.0)
    assert seconds_of(time_source, lambda: model(torch.ones(16, 4))["loss"].backward()) == pytest.approx(1.0)


def test_a_batch_that_does_not_fit_is_out_of_memory(model, gpu):
    SimulatedCompute(model, gpu, FORWARD, batches=SimulatedBatches(samples=8, model_gib=16.0, sample_gib=4.0))
    model(inputs=torch.ones(16, 4))["loss"].backward()
    with pytest.raises(torch.OutOfMemoryError, match=r"84\.0 GiB, and a A100-SXM4-80GB has 80\.0 GiB"):
        model(inputs=torch.ones(17, 4))
    with torch.no_grad():
        model(torch.ones(100, 4))


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"samples": 8, "half_samples": -1}, {"samples": 8, "sample_gib": "x"}]
)
def test_wrong_batches_are_refused_by_name(wrong):
    with pytest.raises(UsageError, match=r"SimulatedBatches\."):
        SimulatedBatches(**wrong)


def test_a_position_without_gradients_is_the_work_of_decoding(gpu, time_source):
    model = torch.nn.Embedding(4, 3)
    SimulatedCompute(model, gpu, FORWARD, decoding=Work(0.2, 100.0, compute_bound_fraction=0.05))
    one, many = torch.ones(2, 1, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    with torch.no_grad():
        begin = gpu.exact_energy_joules()
        assert seconds_of(time_source, lambda: model(one)) == pytest.approx(0.2)
        assert gpu.exact_energy_joules() - begin == pytest.approx(20.0)
        assert seconds_of(time_source, lambda: model(many)) == pytest.approx(1.0)
    assert seconds_of(time_source, lambda: model(one)) == pytest.approx(1.0)
