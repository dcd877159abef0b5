"""A kind of setting that the product does not have: fan speeds, made here by one entry in the table of kinds."""

from dataclasses import replace

import pytest

from zeus_core.cli import main
from zeus_core.daemon._peer import Peer
from zeus_core.daemon._policy import Allowance, NotAllowedError, Policy, Rule
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.kinds import KINDS, Kind
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.limiter import knob_of
from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import Ledger
from zeus_core.settings.restoring import restore_entry
from zeus_core.testing import VirtualTime
from zeus_core.tracing.trace_file import read_trace
from zeus_core.training import TrainingEnergy

ORIGINAL, LOWEST = 80, 30
LARGEST_FAN_WATTS = 90.0
USER = Peer(1, 7, frozenset({7}))
WORK = Work(0.9, 250.0, 0.889, 0.784)


class FanSpeed(Kind):
    name, words, option = "fan_speed", "fan speed", "fan speed"
    unit, unit_name = "%", "percent"
    coarse_step = fine_step = 10

    def read(self, gpu):
        return float(gpu.fan_percent)

    def read_accepted(self, gpu):
        return 100, LOWEST

    def set(self, gpu, value):
        gpu.fan_percent = value

    def command(self, uuids, value):
        return f"sudo set-fan --gpus {','.join(uuids)} --percent {value:g}"


class CooledGpu:
    """A simulated GPU with a fan, which takes energy too: by the third power of its speed."""

    def __init__(self, time_source):
        self._gpu, self._time_source = SimulatedGpu(find_preset("A40"), time_source=time_source), time_source
        self._joules, self._since, self._percent = 0.0, time_source.now(), float(ORIGINAL)

    def __getattr__(self, name):
        return getattr(self._gpu, name)

    @property
    def fan_percent(self):
        return self._percent

    @fan_percent.setter
    def fan_percent(self, percent):
        self._joules, self._since, self._percent = self._fan_joules(), self._time_source.now(), float(percent)

    def _fan_joules(self):
        fan_watts = LARGEST_FAN_WATTS * (self._percent / 100) ** 3
        return self._joules + fan_watts * (self._time_source.now() - self._since)

    def read_energy_counter_joules(self):
        return self._gpu.read_energy_counter_joules() + self._fan_joules()


@pytest.fixture(autouse=True)
def fan_speed(monkeypatch):
    monkeypatch.setitem(KINDS, "fan_speed", FanSpeed())


@pytest.fixture
def time_source():
    return VirtualTime()


@pytest.fixture
def gpu(time_source):
    return CooledGpu(time_source)


@pytest.fixture
def optimizer(gpu, time_source):
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    return GlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=1, knob="fan speed", quiet=True)


def train(observer, gpu, steps):
    for _ in range(steps):
        observer.on_step_begin()
        gpu.execute(WORK)
        observer.on_step_end()


@pytest.fixture
def entry(gpu):
    """The entry of a process that has ended, and left the fan at its lowest speed, as files hold it."""
    gpu.fan_percent = LOWEST
    entry = LedgerEntry.of_this_process(gpu.uuid, gpu.name, KINDS["fan_speed"], ORIGINAL)
    owner = replace(entry.owner, pid=2**22 + 1)
    return LedgerEntry.from_json(replace(entry, owner=owner, values=(float(LOWEST),)).to_json())


def test_a_search_measures_each_speed_chooses_the_best_and_restores_the_original(gpu, optimizer):
    train(optimizer, gpu, 400)
    assert optimizer.phase is Phase.DONE
    assert {trial.setting for trial in optimizer.trials} == {80, 70, 60, 50, 40, 30}
    assert gpu.fan_percent == LOWEST
    assert optimizer.saving_fraction > 0.1
    assert optimizer.chosen_limit_watts is optimizer.chosen_clock_mhz is None
    optimizer.on_train_end()
    assert gpu.fan_percent == ORIGINAL


def test_the_result_and_the_report_of_a_run_name_it(gpu, optimizer, tmp_path, capsys):
    energy = TrainingEnergy(optimizer=optimizer, folder=tmp_path, quiet=True)
    energy.on_train_begin(max_steps=400)
    train(energy, gpu, 400)
    energy.on_train_end()
    assert any("30 %" in row for row in optimizer.result().values()), optimizer.result()
    assert main(["report", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert "fan speed" in report
    assert "30 %" in report


def test_a_trace_marks_each_speed(gpu, optimizer, tmp_path):
    """Before, a trace said "original setting" while settings other than limits and SM clocks were tried."""
    energy = TrainingEnergy(optimizer=optimizer, folder=tmp_path, trace=True, quiet=True)
    energy.on_train_begin(max_steps=400)
    train(energy, gpu, 400)
    energy.on_train_end()
    trace = read_trace(tmp_path / "zeus-energy" / "trace-0.json.gz")
    marks = {event["name"] for event in trace.events if event["ph"] == "i"}
    assert {"fan speed 80 %", "fan speed 70 %", "fan speed 30 %", "original setting"} <= marks


@pytest.mark.parametrize("steps", [30, 400])
def test_a_speed_that_somebody_else_sets_meanwhile_stays(gpu, optimizer, caplog, steps):
    train(optimizer, gpu, steps)
    assert (optimizer.phase is Phase.DONE) == (steps == 400)
    gpu.fan_percent = 65
    train(optimizer, gpu, 400)
    optimizer.on_train_end()
    assert gpu.fan_percent == 65
    assert "somebody else has set" in caplog.text
    assert "65 %" in caplog.text


def test_residue_is_restored_and_what_others_have_set_since_is_not(gpu, entry):
    assert restore_entry(gpu, entry).kind == "restored"
    assert gpu.fan_percent == ORIGINAL
    gpu.fan_percent = 55
    outcome = restore_entry(gpu, entry)
    assert outcome.kind == "replaced"
    assert gpu.fan_percent == 55
    assert f"`sudo set-fan --gpus {gpu.uuid} --percent 80`" in str(outcome)
    assert "has set 55 % since" in str(outcome)


def test_the_ledger_holds_and_the_command_lists_it(entry, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ZEUS_LEDGER_DIR", str(tmp_path / "ledger"))
    Ledger(str(tmp_path / "ledger")).note(entry)
    assert main(["top", "--once"]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if entry.device_uuid in line)
    assert "fan speed" in line
    assert "30 %" in line
    assert "80 %" in line


def test_without_the_entry_there_is_no_such_kind(monkeypatch, gpu, time_source):
    monkeypatch.delitem(KINDS, "fan_speed")
    with pytest.raises(
        UsageError, match="knob is 'fan speed'; it must be one of 'power limit', 'clock', 'power profile', 'auto'"
    ):
        GlobalPowerLimitOptimizer(ZeusMonitor(gpus=[gpu], time_source=time_source), knob="fan speed")


def test_it_takes_no_part_where_nobody_has_named_it(gpu, time_source, tmp_path):
    """`auto` does not try it, and a rule of the daemon allows it by its name, or by a range of its own, alone."""
    optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(gpus=[gpu], time_source=time_source), knob="auto", quiet=True)
    train(optimizer, gpu, 20)
    assert gpu.fan_percent == ORIGINAL
    assert "fan" not in str(optimizer.result())
    optimizer.on_train_end()
    allowed = Rule(users=frozenset({7}))
    assert {kind.name for kind in allowed.ranges} == {"power_limit", "sm_clock"}
    named = Policy(rules=(Rule(users=frozenset({7}), ranges={KINDS["fan_speed"]: Allowance(30.0, 100.0)}),))
    with pytest.raises(NotAllowedError, match="may not change the fan speed"):
        Policy(rules=(allowed,)).allowance(USER, gpu.uuid, KINDS["fan_speed"], ORIGINAL)
    assert named.allowance(USER, gpu.uuid, KINDS["fan_speed"], ORIGINAL) == (30.0, ORIGINAL)


class FanLock(FanSpeed):
    """The same, where the driver reports how fast the fan turns, and not where it is held."""

    name, words, option = "fan_lock", "fan lock", "fan lock"
    is_readable = False

    def read(self, gpu):
        return None

    def read_running(self, gpu):
        return 100.0 if gpu.fan_percent is None else gpu.fan_percent

    def set(self, gpu, value):
        gpu.held_at = value

    def command(self, uuids, value):
        return f"sudo hold-fan --gpus {','.join(uuids)} --at {value}"


@pytest.mark.parametrize("setting", [100, 60])
def test_a_lock_that_the_driver_does_not_report_is_freed_and_not_held_at_the_highest(gpu, setting, monkeypatch):
    monkeypatch.setitem(KINDS, "fan_lock", FanLock())
    gpu.held_at = None
    gpu.fan_percent = LOWEST  # it turns as fast as it must, and no faster than it is held at
    knob = knob_of(FanLock(), [gpu], None)
    knob.apply(60)
    assert gpu.held_at == 60
    knob.apply(setting)
    assert gpu.held_at == (None if setting == 100 else setting)
    assert knob.restore()
    assert gpu.held_at is None
