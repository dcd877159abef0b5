"""Training by a user without any right: limits and clocks are set by the daemon, and nothing in the script tells."""

import os
import signal

import pytest

from tests.daemon.conftest import DEVICE, ORIGINAL_WATTS, WAIT_SECONDS, needs_root, until
from tests.support.perseus_ranks import make_perseus_program, rank_processes
from tests.support.variants import long_but_first

pytestmark = needs_root

LOADS = [[(0.3, 500.0), (0.1, 300.0)], [(1.0, 350.0)]]
LIMIT, LOCK = "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks"

SEARCH = """
    import sys, time
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch

    with GlobalPowerLimitOptimizer(ZeusMonitor(), None, 0, 0, profile_steps=2, search=GridSearch) as optimizer:
        for step in range({steps}):
            optimizer.on_step_begin()
            time.sleep(0.002)
            optimizer.on_step_end()
        print(optimizer.baseline_limit_watts, optimizer.phase.value, flush=True)
        {end}
"""

OVER_A_CRASH = """
    import time
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch

    with GlobalPowerLimitOptimizer(ZeusMonitor(), None, 0, 0, profile_steps=2, search=GridSearch) as optimizer:
        for step in range(600):
            optimizer.on_step_begin()
            time.sleep(0.002)
            optimizer.on_step_end()
            if step == 7:  # within a trial
                print("ready", flush=True)
                input()
            if optimizer.phase.value == "done":
                break
        print(optimizer.phase.value, len(optimizer.trials), flush=True)
"""

OVER_A_STOP = """
    import pathlib, sys, time
    from tests.support.hooks import recorded_waits
    waits = recorded_waits()
    from zeus_core.device import discover_cpus
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
    from zeus_core.search import GridSearch
    from zeus_core.training import TrainingEnergy

    def tell(word):
        print(word, flush=True)
        sys.stdin.readline()

    monitor = ZeusMonitor(cpus=discover_cpus(pathlib.Path({powercap!r})))
    assert len(monitor.cpus) == {cpus}
    optimizer = GlobalPowerLimitOptimizer(monitor, None, 0, 0, profile_steps=4, search=GridSearch)
    with TrainingEnergy(optimizer=optimizer, quiet=True) as energy:
        for step in range(30):
            energy.on_step_begin()
            time.sleep(0.002)
            energy.on_step_end()
            if step == {stopped_after}:
                tell("stop")
            if step % 10 == 9:
                energy.log()
    tell("ended")
    print(max(waits.of_hooks))
"""

CLOCKS = """
    from zeus_core.device import discover_gpus
    from zeus_core.settings.clock_knob import SmClockKnob

    knob = SmClockKnob(discover_gpus()[0])
    for clock in knob.settings[::20]:
        knob.apply(clock)
        print(clock)
    print(knob.restore())
"""


def changed_by(world, function):
    """Who has changed GPUs, and to what; refusals are left out."""
    calls = [call for call in world.driver.calls(function) if call.code == 0]
    return {call.process_id for call in calls}, [call.argument for call in calls]


def check_restored(world):
    until(lambda: world.entries() == [])
    assert [device.power_limit_watts for device in world.driver] == [ORIGINAL_WATTS] * len(world.driver)
    assert [device.locked_clock_mhz for device in world.driver] == [None] * len(world.driver)


@pytest.fixture
def loaded_world(world):
    for device, load in zip(world.driver, LOADS, strict=True):
        device.set_load(load, repeat=True)
    return world


def test_a_search_by_an_unprivileged_process_goes_through_the_daemon(loaded_world):
    said, errors = loaded_world.run(SEARCH.format(steps=12, end="pass"))
    assert said.split()[0] == "450"
    assert "root" not in errors
    processes, milliwatts = changed_by(loaded_world, LIMIT)
    assert processes == {loaded_world.daemon.pid}
    assert min(milliwatts) < ORIGINAL_WATTS * 1000
    assert max(milliwatts) == ORIGINAL_WATTS * 1000
    check_restored(loaded_world)


def test_a_search_that_is_killed_leaves_nothing(loaded_world):
    end = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    process = loaded_world.client(SEARCH.format(steps=7, end=end))
    process.communicate(timeout=WAIT_SECONDS)
    assert changed_by(loaded_world, LIMIT)[0] == {loaded_world.daemon.pid}
    check_restored(loaded_world)


def test_a_search_goes_on_after_a_crash_of_the_daemon(loaded_world):
    process = loaded_world.client(OVER_A_CRASH)
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    before = loaded_world.daemon
    before.kill()
    before.wait()
    loaded_world.start_daemon()
    output, errors = process.communicate("\n", timeout=WAIT_SECONDS)
    phase, trials = output.split()
    assert phase == "done", errors
    assert "somebody else" not in errors
    processes, _ = changed_by(loaded_world, LIMIT)
    assert processes == {before.pid, loaded_world.daemon.pid}
    assert int(trials) >= 2
    check_restored(loaded_world)


@pytest.mark.parametrize("cpus", [0, 4])
@pytest.mark.parametrize("stopped_after", long_but_first([8, 0, 11, 29]))
def test_no_hook_waits_over_a_second_for_a_daemon_stopped_mid_lease(make_world, cpus, stopped_after):
    world = make_world(DEVICE, DEVICE)
    powercap = world.folder / "powercap"
    for number in range(cpus):
        zone = powercap / f"intel-rapl:{number}"
        zone.mkdir(parents=True)
        for name, text in (("name", f"package-{number}"), ("energy_uj", "1"), ("max_energy_range_uj", "262143328850")):
            (zone / name).write_text(text)
        (zone / "energy_uj").chmod(0o400)
    world.start_daemon()
    program = OVER_A_STOP.format(powercap=str(powercap), cpus=cpus, stopped_after=stopped_after)
    process = world.client(program, is_patient=False)
    assert process.stdout.readline() == "stop\n", process.communicate()[1]
    world.daemon.send_signal(signal.SIGSTOP)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ended\n", process.communicate()[1]
    world.daemon.send_signal(signal.SIGCONT)
    waited, errors = process.communicate("\n", timeout=WAIT_SECONDS)
    assert 0.2 < float(waited) <= 1.0 + 1e-9, "a hook has waited for the daemon, and none for long"
    assert errors.count("is off for the rest of this run") <= 1, errors
    check_restored(world)


def test_a_search_begins_anew_below_a_limit_that_an_administrator_sets(loaded_world):
    process = loaded_world.client(OVER_A_CRASH, ZEUS_LEDGER_DIR=str(loaded_world.ledger))
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    loaded_world.driver.clear_calls()
    for device in loaded_world.driver:
        device.power_limit_watts = 260.0
    output, errors = process.communicate("\n", timeout=WAIT_SECONDS)
    phase, trials = output.split()
    assert phase == "done", errors
    assert int(trials) > 1
    assert errors.count("somebody else has set the power limit") == 1
    assert "begins anew below it" in errors
    _, milliwatts = changed_by(loaded_world, LIMIT)
    assert max(milliwatts) == 260_000, "their limit is never raised"
    until(lambda: loaded_world.entries() == [])
    assert [device.power_limit_watts for device in loaded_world.driver] == [260.0] * 2


def test_without_a_daemon_the_search_observes_and_says_what_is_missing(make_world):
    world = make_world(DEVICE)
    _, errors = world.run(SEARCH.format(steps=12, end="pass"))
    assert "no zeus-core daemon runs at" in errors
    assert changed_by(world, LIMIT) == (set(), [])


def test_clocks_go_through_the_daemon(world):
    said, _ = world.run(CLOCKS)
    *clocks, is_restored = said.split()
    assert is_restored == "True"
    processes, set_clocks = changed_by(world, LOCK)
    assert processes == {world.daemon.pid}
    assert set_clocks == list(map(int, clocks))
    check_restored(world)


@pytest.mark.long
def test_perseus_clocks_go_through_the_daemon_and_a_killed_rank_keeps_none(make_world):
    world = make_world(*[DEVICE] * 4)
    world.start_daemon()
    process = world.client(make_perseus_program())
    ranks = rank_processes(process)
    until(lambda: None not in [device.locked_clock_mhz for device in world.driver], "a clock on all ranks", 240.0)
    os.kill(ranks[2], signal.SIGKILL)
    process.communicate(timeout=240)  # the others lose their neighbour, and end
    processes, _ = changed_by(world, LOCK)
    assert processes == {world.daemon.pid}
    check_restored(world)
