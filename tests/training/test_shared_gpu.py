"""A GPU on which others compute too: the box, the log and the file of the run say so."""

import os
import subprocess
import sys
import time

import pytest

from zeus_core.device import CpuDiscovery
from zeus_core.device.gpu import count_others
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy
from zeus_core.training.record.run_file import read_run

OTHER, THIRD = 7000001, 7000002  # processes of others, above all that Linux gives
WAIT_SECONDS = 240.0  # far more than anything takes: timing never decides a test


def on(device, *process_ids):
    device.set_processes(*((process_id, 0, 0) for process_id in process_ids))


@pytest.fixture
def child():
    """A process that this one has begun."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


@pytest.fixture
def monitor(make_driver):
    driver = make_driver()
    monitor = ZeusMonitor(cpus=CpuDiscovery((), "none"), synchronize=lambda _: None)
    return monitor, driver[0]


def test_others_are_counted_where_a_process_of_ours_is_listed(monitor, child):
    (gpu,), device = monitor[0].gpus.values(), monitor[1]
    for process_ids, expected in [
        ((), None),
        ((OTHER,), None),  # we do not compute yet, or have another id there
        ((os.getpid(),), 0),
        ((child,), 0),  # `zeus-core run` measures it
        ((os.getpid(), child, OTHER, THIRD), 2),
    ]:
        on(device, *process_ids)
        assert count_others(gpu) == expected
    on(device, os.getpid(), os.getppid(), OTHER)
    assert (count_others(gpu), count_others(gpu, is_rank=True)) == (2, 1), "those of one launcher are ranks of one job"


def test_box_log_and_file_say_how_many(monitor, tmp_path, capsys, caplog):
    monitor, device = monitor
    on(device, os.getpid(), OTHER, THIRD)
    said = "GPU 0: 2 other processes computed on it meanwhile, and the energy is that of all"
    end = time.monotonic() + WAIT_SECONDS
    with TrainingEnergy(monitor, folder=tmp_path) as energy:
        while said not in caplog.text:
            assert time.monotonic() < end
            with energy.step():
                time.sleep(0.01)
            energy.log()
        on(device, os.getpid())
    assert caplog.text.count(said) == 1
    assert said in energy.summary.rows()["remarks"]
    assert "2 other processes computed on it" in " ".join(capsys.readouterr().err.split())
    assert said in read_run(tmp_path).latest.results["remarks"]
