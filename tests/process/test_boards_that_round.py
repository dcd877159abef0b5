"""Boards that take another limit or clock than the one requested: it is ours, and the original is restored.

Real processes and the driver in C. `tests/unprivileged.py` runs this with the daemon.
"""

import dataclasses
import os
import sys
import textwrap
from types import SimpleNamespace

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support import quick_searches
from tests.support.quick_searches import ENDS, wait_until
from tests.support.variants import long_but_first
from zeus_core.device import discover_gpus
from zeus_core.settings.limit_knob import PowerLimitKnob

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the ledger needs Linux")

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(
    lowest_limit_watts=100, default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS, counter_period_seconds=0.0
)

BOARDS = {
    "steps of 10 W": {"step_watts": 10},
    "steps of 30 W": {"step_watts": 30},
    "none below 280 W": {"floor_watts": 280},
    "0.6 W less": {"offset_watts": 0.6},
    "3 W less": {"offset_watts": 3.0},
}
TRIED = [445, 395, 335, 250, 185, 100]
WALK = f"optimizer = make(); walk(optimizer, {len(TRIED) + 6})"


def begin(driver, settings, end="", kind="GlobalPowerLimitOptimizer", walk=WALK):
    """Start a program that makes one optimizer after another."""
    return quick_searches.begin(driver, f"{textwrap.dedent(walk)}\nkept = [optimizer]", end, kind, settings)


def told(process):
    """Return what the last optimizer has found, and the limit in force."""
    found = quick_searches.told(process)
    return {**found["optimizers"][-1], "lines": found["lines"], "in_force": found["limit_watts"]}


def wait_until_restored(driver, *shown_watts):
    """Wait until the original is in force, or what the board shows for it."""
    wait_until(lambda: min(abs(driver[0].power_limit_watts - watts) for watts in (ORIGINAL_WATTS, *shown_watts)) < 0.01)
    wait_until(lambda: driver[0].locked_clock_mhz is None)
    wait_until(lambda: not list(driver.ledger_path.glob("*.json")))


def taken(device, board, watts):
    """What a board takes for a limit."""
    step = board.get("step_watts", 1)
    return max(watts // step * step - board.get("offset_watts", 0.0), board.get("floor_watts", 0.0))


# A board may have another limit in force at first than it takes: one of its driver's, or of an administrator's choice.
OFF_GRID_WATTS = 415.0
ORIGINALS = long_but_first([ORIGINAL_WATTS, OFF_GRID_WATTS])


@pytest.mark.parametrize("original_watts", ORIGINALS)
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("end", long_but_first(["SIGKILL", "normal end"]))
def test_a_search_knows_the_boards_limits_and_restores_the_original(make_driver, board, end, original_watts):
    driver = make_driver(dataclasses.replace(DEVICE, power_limit_watts=original_watts))
    driver[0].take_limits(**BOARDS[board])
    process = begin(driver, TRIED, ENDS[end])
    found = told(process)
    process.communicate(timeout=240)
    shown_watts = taken(driver[0], BOARDS[board], original_watts)
    wait_until(lambda: driver[0].power_limit_watts in (original_watts, shown_watts))
    wait_until(lambda: not list(driver.ledger_path.glob("*.json")))
    assert not [line for line in found["lines"] if "somebody else" in line or "is off" in line], found["lines"]
    assert found["original"] == original_watts
    assert found["chosen"] in found["tried"]
    assert found["chosen"] == min(found["tried"])
    assert abs(found["in_force"] - found["chosen"]) < 1.0
    for watts in found["tried"]:
        assert watts == original_watts or any(
            abs(taken(driver[0], BOARDS[board], asked) - watts) < 1.0 for asked in TRIED
        ), "a trial has the limit that was in force"
    calls = [call.argument / 1e3 for call in driver.calls("nvmlDeviceSetPowerManagementLimit")]
    assert max(calls) < original_watts + 1.0


def test_a_board_that_is_left_at_another_limit_than_the_original_says_so(make_driver, caplog):
    driver = make_driver(dataclasses.replace(DEVICE, power_limit_watts=327))
    driver[0].take_limits(step_watts=10)
    knob = PowerLimitKnob(discover_gpus({}), 1)
    knob.apply(300)
    assert knob.restore()
    assert driver[0].power_limit_watts == 320
    assert "327 W is not taken by the board, which has 320 W in its place" in caplog.text


def test_a_board_that_accepts_no_limit_stays_at_the_original_without_retries(make_driver):
    driver = make_driver(DEVICE)
    driver[0].ignore_settings()
    process = begin(driver, TRIED)
    found = told(process)
    process.communicate(timeout=240)
    assert (found["chosen"], found["tried"]) == (450, [450])
    assert len(driver.calls("nvmlDeviceSetPowerManagementLimit")) <= 2 * len(TRIED)
    wait_until_restored(driver)


@pytest.mark.parametrize("board", ["steps of 30 W", "0.6 W less"])
def test_ten_trainings_one_after_another_leave_the_limit_where_it_was(make_driver, board):
    """Each would leave it a little lower, if it asked for the original alone."""
    driver = make_driver(DEVICE)
    driver[0].take_limits(**BOARDS[board])
    walk = """
        for _ in range(10):
            optimizer = make()
            walk(optimizer, 5)
            optimizer.on_train_end()
            assert abs(gpus[0].read_power_limit_watts() - 450) < 0.01, gpus[0].read_power_limit_watts()
    """
    process = begin(driver, [395], walk=walk)
    output, errors = process.communicate(timeout=240)
    assert output, errors
    wait_until_restored(driver)


def test_a_board_that_begins_to_round_in_mid_run(make_driver):
    driver = make_driver(DEVICE)
    walk = """
        optimizer = make()
        walk(optimizer, 2)
        print("begun", flush=True)
        input()
        walk(optimizer, 12)
    """
    process = begin(driver, TRIED, ENDS["SIGKILL"], walk=walk)
    assert process.stdout.readline() == "begun\n", process.stderr.read()
    driver[0].take_limits(step_watts=30)
    process.stdin.write("\n")
    process.stdin.flush()
    found = told(process)
    assert not [line for line in found["lines"] if "somebody else" in line], found["lines"]
    process.communicate(timeout=240)
    wait_until_restored(driver)


@pytest.mark.parametrize("board", ["steps of 30 W", "none below 280 W"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_process_killed_before_it_could_read_back_what_the_board_took(make_driver, board, is_first):
    """Each reading takes 0.3 s: as soon as the limit is set, the process is killed while it reads."""
    driver = make_driver(DEVICE)
    driver[0].take_limits(**BOARDS[board])
    program = """
        from zeus_core.device import discover_gpus
        from zeus_core.settings.limit_knob import PowerLimitKnob
        knob = PowerLimitKnob(discover_gpus({}), 5)
        BEFORE
        print("begun", flush=True)
        input()
        knob.apply(255)
        input()
    """
    process = driver.start(textwrap.dedent(program).replace("BEFORE", "" if is_first else "knob.apply(300)"))
    assert process.stdout.readline() == "begun\n", process.stderr.read()
    driver.set_latency(0.3, "nvmlDeviceGetPowerManagementLimit")
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: any(call.argument == 255_000 for call in driver.calls("nvmlDeviceSetPowerManagementLimit")))
    process.kill()
    driver.set_latency(0.0)
    wait_until_restored(driver)


@pytest.mark.parametrize("board", [{"step_mhz": 50}, {"floor_mhz": 1200}], ids=str)
@pytest.mark.parametrize("end", ["", ENDS["SIGKILL"]], ids=["normal end", "SIGKILL"])
def test_a_board_that_locks_higher_clocks_than_requested(make_driver, board, end):
    driver = make_driver(DEVICE)
    driver[0].take_clocks(**board)
    driver[0].round_up()
    tried = [1755, 1410, 1005, 345]
    process = begin(driver, tried, end, "GlobalClockOptimizer")
    found = told(process)
    assert not [line for line in found["lines"] if "somebody else" in line or "is off" in line], found["lines"]
    assert found["chosen"] in found["tried"]
    assert found["chosen"] >= board.get("floor_mhz", 0)
    process.communicate(timeout=240)
    wait_until_restored(driver)


@pytest.mark.parametrize("is_rounding", [False, True])
def test_a_limit_that_an_administrator_sets_beside_ours_stays(make_driver, is_rounding):
    driver = make_driver(DEVICE)
    if is_rounding:
        driver[0].take_limits(step_watts=30)
    process = begin(driver, TRIED, "input(); os.kill(os.getpid(), signal.SIGKILL)")
    found = told(process)
    driver[0].power_limit_watts = found["in_force"] - 20.0 if found["in_force"] > 150 else found["in_force"] + 20.0
    theirs = driver[0].power_limit_watts
    process.communicate("\n", timeout=240)
    wait_until(lambda: not list(driver.ledger_path.glob("*.json")))
    assert driver[0].power_limit_watts == theirs


def test_after_a_reload_of_the_driver_the_message_names_it(make_driver, caplog):
    from zeus_core.device import discover_gpus
    from zeus_core.settings.limit_knob import PowerLimitKnob

    driver = make_driver(DEVICE)
    knob = PowerLimitKnob(discover_gpus({}), 25)
    knob.apply(300)
    driver[0].power_limit_watts = 650.0  # the default
    with pytest.raises(
        Exception, match="the driver, which was reloaded or has reset the GPU, or somebody else has set"
    ):
        knob.apply(200)
    assert knob.restore()
    assert driver[0].power_limit_watts == 650.0


def test_a_second_object_takes_over_where_the_board_refuses_the_original(make_driver):
    driver = make_driver(dataclasses.replace(DEVICE, power_limit_watts=OFF_GRID_WATTS))
    driver[0].take_limits(step_watts=30)
    walk = """
        kept = []
        for _ in range(3):
            optimizer = make()
            kept.append(optimizer)
            walk(optimizer, 8)
    """
    process = begin(driver, [395, 250], ENDS["SIGKILL"], walk=walk)
    found = told(process)
    process.communicate(timeout=240)
    assert not [line for line in found["lines"] if "somebody else" in line], found["lines"]
    # The daemon takes the limit that the board shows after the first one's restoring for the original.
    assert set(found["tried"]) - {415} == {390, 240}, found
    wait_until(lambda: driver[0].power_limit_watts == 390.0)


def test_a_process_that_tries_its_right_lowers_no_limit_for_good(make_driver, monkeypatch):
    """It sets the limit in force again, which a board may round."""
    from zeus_core.device import discover_gpus
    from zeus_core.settings.limit_knob import PowerLimitKnob

    driver = make_driver(dataclasses.replace(DEVICE, power_limit_watts=OFF_GRID_WATTS))
    driver[0].take_limits(step_watts=30)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    knob = PowerLimitKnob(discover_gpus({}), 25)
    knob.apply(300)
    assert driver[0].power_limit_watts == 300.0
    assert knob.restore()
    assert driver[0].power_limit_watts == 390.0


@pytest.mark.parametrize("end", ["input(); knob.restore()", "input(); os.kill(os.getpid(), 9)"])
def test_an_administrators_limit_stays_also_if_it_was_tried_before(make_driver, end):
    driver = make_driver(DEVICE)
    program = f"""
        import os
        from zeus_core.device import discover_gpus
        from zeus_core.settings.limit_knob import PowerLimitKnob
        knob = PowerLimitKnob(discover_gpus({{}}), 25)
        for limit_watts in (450, 425, 400, 375, 350, 300):
            knob.apply(limit_watts)
        print("ready", flush=True)
        {end}
    """
    process = driver.start(textwrap.dedent(program))
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    driver[0].power_limit_watts = 400.0
    process.communicate("\n", timeout=240)
    wait_until(lambda: not list(driver.ledger_path.glob("*.json")))
    assert driver[0].power_limit_watts == 400.0


@pytest.mark.parametrize("board", [{"step_watts": 10}, {"floor_watts": 280}], ids=str)
def test_a_search_that_has_settings_of_its_own_ends_too(make_driver, board):
    driver = make_driver(DEVICE)
    driver[0].take_limits(**board)
    walk = """
        few = lambda settings, selector: GridSearch([450, 395, 335, 250, 200], selector)
        optimizer = make()
        walk(optimizer, 20)
    """
    process = begin(driver, [], walk=walk)
    found = told(process)
    process.communicate(timeout=240)
    assert found["chosen"] is not None
    assert set(found["tried"]) == {450, *(int(taken(driver[0], board, asked)) for asked in (395, 335, 250, 200))}
    asked = [call.argument for call in driver.calls("nvmlDeviceSetPowerManagementLimit")]
    assert asked.count(395_000) <= 3, "tried, and perhaps chosen"


def test_many_boards_that_take_no_clock_are_waited_for_together(make_driver, monkeypatch):
    from zeus_core.device import discover_gpus
    from zeus_core.kinds import SM_CLOCK
    from zeus_core.settings.clock_knob import LockKnob

    slept = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("zeus_core.settings.clock_knob.time", clock)

    driver = make_driver(*[DEVICE] * 12)
    for device in driver:
        device.ignore_settings()
    knob = LockKnob(SM_CLOCK, discover_gpus({}))
    knob.apply(knob.settings[3])
    assert 0.1 <= sum(slept) < 0.2
    assert knob.in_force == knob.settings[0]
    assert knob.restore()
