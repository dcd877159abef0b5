"""One SM clock for several GPUs: in force on all, restored on all, and noticed when somebody else changes it."""

import pytest

from tests.contracts.knob import KnobContract
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DeviceHeldError, DriverFaultError, NotSupportedError, PermissionDeniedError, UsageError
from zeus_core.kinds import SM_CLOCK
from zeus_core.kinds.power_limit import PowerLimit
from zeus_core.kinds.sm_clock import SmClock
from zeus_core.optimizer.limiter import Answer, Limiter
from zeus_core.settings.clock_knob import LockKnob
from zeus_core.testing import FaultyGpu, VirtualTime


def make_gpus(*models, grants_control=True):
    time_source = VirtualTime()
    return [
        SimulatedGpu(find_preset(model), index, time_source=time_source, grants_control=grants_control)
        for index, model in enumerate(models)
    ]


def locks_of(gpus):
    """Return the clock of each GPU under work that no power limit holds below."""
    for gpu in gpus:
        gpu.submit(Work(1e6, 60.0, 1.0, 0.9))
    return [gpu.read_sm_clock_mhz() for gpu in gpus]


class TestContract(KnobContract):
    @pytest.fixture
    def gpus(self):
        return make_gpus("A40", "A40", "A100")

    @pytest.fixture
    def make_knob(self, gpus):
        return lambda: LockKnob(SM_CLOCK, gpus)

    @pytest.fixture
    def read_hardware(self, gpus):
        return lambda: locks_of(gpus)


def test_settings_are_clocks_all_gpus_support_below_the_highest_of_any():
    assert SM_CLOCK.common_settings([(1410, 1395, 1380, 1365), (1980, 1395, 1365, 210)]) == (1980, 1395, 1365)
    assert SM_CLOCK.common_settings([(1410, 1395), (1410, 1395)]) == (1410, 1395)
    settings = LockKnob(SM_CLOCK, make_gpus("A40", "A100")).settings
    assert settings[:3] == (1740, 1410, 1395)
    assert settings[-1] == 210


def test_a_clock_is_locked_on_all_gpus_and_the_baseline_unlocks_them():
    gpus = make_gpus("A40", "A40", "A100")
    knob = LockKnob(SM_CLOCK, gpus)
    knob.apply(1200)
    assert locks_of(gpus) == [1200, 1200, 1200]
    knob.apply(1740)
    assert locks_of(gpus) == [1740, 1740, 1410]


def test_gpus_that_were_locked_return_to_their_clock():
    gpus = make_gpus("A40", "A40")
    for gpu in gpus:
        gpu.lock_sm_clock(1500)
    knob = LockKnob(SmClock(original=1500), gpus)
    assert knob.settings[0] == 1500
    knob.apply(1200)
    knob.apply(1500)
    assert locks_of(gpus) == [1500, 1500]
    knob.apply(900)
    assert knob.restore()
    assert locks_of(gpus) == [1500, 1500]


def test_an_unsupported_clock_and_a_clock_that_was_not_locked_are_refused():
    knob = LockKnob(SM_CLOCK, make_gpus("A40"))
    with pytest.raises(UsageError, match="1201 MHz is none of the settings"):
        knob.apply(1201)
    with pytest.raises(UsageError, match="original_clock_mhz is 1501"):
        LockKnob(SmClock(original=1501), make_gpus("A40"))


def test_missing_rights_are_known_at_the_baseline_before_any_measurement():
    gpus = make_gpus("A40", grants_control=False)
    knob = LockKnob(SM_CLOCK, gpus)
    with pytest.raises(PermissionDeniedError):
        knob.apply(knob.settings[0])
    assert knob.restore()


def test_a_gpu_without_clocks_says_so():
    faulty = FaultyGpu(*make_gpus("A40"))
    faulty.fail("read_supported_sm_clocks_mhz", NotSupportedError("no clocks here"))
    with pytest.raises(NotSupportedError, match="no clocks here"):
        LockKnob(SM_CLOCK, [faulty])


def test_every_gpu_is_restored_even_if_one_refuses():
    first, second = make_gpus("A40", "A40")
    faulty = FaultyGpu(first)
    knob = LockKnob(SM_CLOCK, [faulty, second])
    knob.apply(900)
    faulty.fail("unlock_sm_clock", DriverFaultError("not now"))
    assert not knob.restore()
    assert locks_of([second]) == [1740]
    faulty.heal()
    assert knob.restore()
    assert locks_of([first]) == [1740]


def test_a_lock_that_somebody_else_has_removed_is_noticed_under_load():
    (gpu,) = gpus = make_gpus("A40")
    knob = LockKnob(SM_CLOCK, gpus)
    knob.apply(900)
    gpu.submit(Work(1e6, 60.0))
    assert knob.is_undisturbed()
    gpu.unlock_sm_clock()
    with pytest.raises(DeviceHeldError, match="was locked at 900 MHz and runs at 1740 MHz"):
        knob.is_undisturbed()


def test_a_power_limit_that_somebody_else_has_lowered_is_noticed():
    (gpu,) = gpus = make_gpus("A40")
    knob = LockKnob(SM_CLOCK, gpus)
    knob.apply(900)
    gpu.set_power_limit(150)
    assert not knob.is_undisturbed()
    knob.apply(900)
    assert knob.is_undisturbed(), "it is the ceiling now"


@pytest.mark.parametrize(("kind", "words"), [(PowerLimit(25), "power limit"), (SM_CLOCK, "SM clock")])
def test_the_limiter_turns_either_knob(kind, words):
    gpus = make_gpus("A40", "A40")
    limiter = Limiter(gpus, kind)
    assert limiter.setting == limiter.settings[0]
    assert limiter.set(limiter.settings[3]) == Answer()
    assert limiter.setting == limiter.settings[3]
    assert limiter.is_undisturbed()
    assert limiter.restore()
    assert limiter.setting is None
    assert locks_of(gpus) == [1740, 1740]

    denied = Limiter(make_gpus("A40", grants_control=False), kind)
    assert words in denied.set(denied.settings[0]).denial
    denied.stay("no rights")
    assert denied.setting == denied.settings[0]
