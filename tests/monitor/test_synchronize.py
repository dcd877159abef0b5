"""At both edges of a window, nothing that the framework was given before goes on."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from zeus_core.monitor import ZeusMonitor

# Two devices: an operation on one waits for no other. A process of its own, as JAX forbids `fork` in its process.
JAX_PROGRAM = """
import time

import jax
from zeus_core.monitor import ZeusMonitor

@jax.jit
def work(x):
    return jax.lax.fori_loop(0, 60, lambda _, y: jax.numpy.tanh(y @ x), x)

inputs = [jax.device_put(jax.numpy.full((1000, 1000), 1e-3), device) for device in jax.local_devices()]
assert len(inputs) == 2
for x in inputs:
    work(x).block_until_ready()
monitor = ZeusMonitor(sync_execution_with="jax")
for edge in ("begin", "end"):
    results = [work(x) for x in inputs]
    assert not any(result.is_ready() for result in results), "the work is over too soon to tell anything"
    begin = time.perf_counter()
    monitor.begin_window("work", restart=True) if edge == "begin" else monitor.end_window("work")
    waited = time.perf_counter()
    for result in results:
        result.block_until_ready()
    # JAX notes some 60 us after the end of the work that a result is ready. Where nothing waits, all of it is left.
    print(edge, time.perf_counter() - waited < 0.25 * (waited - begin))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_jax_has_ended_its_work_at_both_edges():
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "ZEUS_SIMULATED_GPUS": "A100:2",
    }
    ended = subprocess.run(
        [sys.executable, "-c", JAX_PROGRAM], env=environment, capture_output=True, text=True, timeout=250
    )
    assert ended.stdout.splitlines() == ["begin True", "end True"], ended.stderr


class FakeJaxDevice:
    """A device with one queue of computations, which transfers do not wait for.

    Attributes:
        local_hardware_id: Its number among the GPUs that the process sees.
        queue: The names of what it has not computed yet.
    """

    def __init__(self, local_hardware_id):
        self.local_hardware_id = local_hardware_id
        self.queue = ["training"]


class FakeJaxArray:
    """An array that is ready once its device has computed all that was queued before it."""

    def __init__(self, device, is_computed=False):
        self.device, self.is_computed = device, is_computed

    def __neg__(self):
        self.device.queue.append("negation")
        return FakeJaxArray(self.device, is_computed=True)

    def block_until_ready(self):
        if self.is_computed:
            self.device.queue.clear()


def test_a_rank_of_jax_waits_for_its_own_gpu_by_its_number(monkeypatch, gpu):
    """A process that `jax.distributed` gives GPU 3 alone has a single device."""
    own, other = FakeJaxDevice(0), FakeJaxDevice(3)
    fake = SimpleNamespace(local_devices=lambda: [other, own], device_put=lambda _, device: FakeJaxArray(device))
    monkeypatch.setitem(sys.modules, "jax", fake)
    ZeusMonitor(gpus=[gpu], sync_execution_with="jax").begin_window("work")
    assert own.queue == []
    assert other.queue == ["training"]


class FakeCupy:
    """CuPy on a machine with some GPUs, each with several streams; `Device.synchronize` waits for all of one's."""

    def __init__(self, gpu_count, driver_is_there=True):
        self.streams = [["training", "loading"] for _ in range(gpu_count)]
        runtime = SimpleNamespace(getDeviceCount=lambda: gpu_count)
        self.cuda = SimpleNamespace(is_available=lambda: driver_is_there, runtime=runtime, Device=self._device)

    def _device(self, index):
        return SimpleNamespace(synchronize=self.streams[index].clear)


@pytest.mark.parametrize("gpu_count", [0, 1, 2])
def test_cupy_waits_for_the_measured_gpus_that_it_has(monkeypatch, gpu, gpu_count):
    cupy = FakeCupy(gpu_count, driver_is_there=gpu_count > 0)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    ZeusMonitor(gpus=[gpu], sync_execution_with="cupy").begin_window("work")
    assert cupy.streams == [[], ["training", "loading"]][:gpu_count]
