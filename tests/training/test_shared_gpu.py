"""A GPU on which others compute too, or that something holds down: the box, the log and the file of the run say so."""

import os
import subprocess
import sys
import time

import pytest

from zeus_core.device.cpu import CpuDiscovery
from zeus_core.device.sharing import Sharing, count_others
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


class UnlistedGpu:
    """A GPU whose driver never lists a process of ours, as in many containers."""

    def __init__(self):
        self.asked = 0

    def read_process_ids(self):
        self.asked += 1
        return [OTHER]


def test_a_driver_that_never_lists_us_is_asked_ever_less_often():
    gpu = UnlistedGpu()
    sharing = Sharing(gpu)
    for second in range(100):
        sharing.look(float(second))
    assert gpu.asked == 13, "after 0, 1, 3, 7 and 15 s, and then every 10 s"
    assert sharing.remark is None


def run_until(is_said, monitor, folder):
    """Train until something is said. Returns the summary and the remarks of the file."""
    end = time.monotonic() + WAIT_SECONDS
    with TrainingEnergy(monitor, folder=folder) as energy:
        while not is_said():
            assert time.monotonic() < end
            with energy.step():
                time.sleep(0.01)
            energy.log()
    return energy.summary, read_run(folder).latest.results.get("remarks", "")


def test_box_log_and_file_say_how_many(monitor, tmp_path, capsys, caplog):
    monitor, device = monitor
    on(device, os.getpid(), OTHER, THIRD)
    said = "GPU 0: 2 other processes computed on it meanwhile, and the energy is that of all"
    summary, filed = run_until(lambda: said in caplog.text, monitor, tmp_path)
    assert caplog.text.count(said) == 1
    assert said in summary.rows()["remarks"]
    assert "2 other processes computed on it" in " ".join(capsys.readouterr().err.split())
    assert said in filed


def test_box_log_and_file_say_what_the_board_enforces(monitor, tmp_path, capsys, caplog):
    monitor, device = monitor
    device.enforced_cap_watts = 500.0
    said = "GPU 0: its board enforced 500 W of the 700 W that were set: firmware or another limiter"
    summary, filed = run_until(lambda: said in caplog.text, monitor, tmp_path)
    assert caplog.text.count(said) == 1
    assert said in summary.rows()["remarks"]
    assert "500 W of the 700 W" in " ".join(capsys.readouterr().err.split())
    assert said in filed


def test_a_board_that_keeps_to_its_limit_has_no_remark(monitor, tmp_path):
    monitor, device = monitor
    device.power_limit_watts = 500.0
    begin = time.monotonic()
    summary, filed = run_until(lambda: time.monotonic() > begin + 0.3, monitor, tmp_path)
    assert (summary.remarks, filed) == ((), "")
