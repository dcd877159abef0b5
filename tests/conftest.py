import contextlib
import gc
import logging
import os
import signal
from collections import Counter

import hypothesis
import pytest

from tests.nvml_driver import DeviceSpec, NoCompilerError, NvmlDriver, build_library
from tests.support.daemons import served, without_rights
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.settings.holders import holders
from zeus_core.testing import VirtualTime

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("COLUMNS", None)  # of the terminal that the tests run in

# Timing and chance never decide a test: all runs try the same examples, and with `--hypothesis-profile random` others.
# Half the usual number of them: all take minutes.
hypothesis.settings.register_profile("random", deadline=None, max_examples=50)
hypothesis.settings.register_profile("zeus-core", hypothesis.settings.get_profile("random"), derandomize=True)
hypothesis.settings.load_profile("zeus-core")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Import the frameworks without garbage collection, and keep them out of it: each training asks for one.

    It took a third of the time of the imports, and 0.3 s of each training.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """End with what this machine or user kept from being tested, and why: how many tests, for each reason."""
    yield
    skipped = (report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in Counter(skipped).items():
        if reason.startswith("Skipped: NOT "):
            terminalreporter.write_line(f"{count} skipped, {reason.removeprefix('Skipped: ')}", yellow=True)


# A shell has what it runs in the background ignore SIGINT and SIGQUIT, and `nohup` SIGHUP; programs that tests start
# would, too.
_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for _number, _usual in _USUAL.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}


def _reset_signal_handlers():
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _signal_handlers():
    """Begin each test with the handlers of a new process: GPUs that fail are never restored, and so stay guarded.

    They are reset before it too, as fixtures of modules and sessions change settings.
    """
    _reset_signal_handlers()
    yield
    _drop_knobs()
    _reset_signal_handlers()


def _drop_knobs():
    """Let go of the GPUs that a test still holds, by knobs in cycles: those of later tests have the same UUIDs."""
    if holders._by_key:
        gc.collect()
        holders._by_key.clear()


def _reset_loggers() -> None:
    for name in ("zeus_core", "zeus_core.monitor"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def loggers_of_others():
    """The program (`main`) takes the loggers of the process for its own, which is that of the tests here.

    They are reset before a test too, as fixtures of modules and sessions run the program.
    """
    _reset_loggers()
    yield
    _reset_loggers()


@pytest.fixture
def time_source() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def gpu(time_source: VirtualTime) -> SimulatedGpu:
    """An A100 with an original limit of 350 W: neither its default nor its maximum."""
    return SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source, power_limit_watts=350)


@pytest.fixture
def monitor(gpu: SimulatedGpu, time_source: VirtualTime) -> ZeusMonitor:
    return ZeusMonitor(gpus=[gpu], time_source=time_source)


@pytest.fixture
def work() -> Work:
    """One training step of a large language model, as fitted to a published sweep on A100s."""
    return Work(seconds=0.5, active_power_watts=484.9, active_fraction=0.938, compute_bound_fraction=0.744)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """The NVML driver for tests, compiled once for all workers of pytest-xdist, whose folders have one parent."""
    folder = tmp_path_factory.getbasetemp()
    try:
        return build_library(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def make_driver(nvml_library, tmp_path):
    """Makes NVML drivers with the given devices, in force in this process until the end of the test."""
    drivers = []

    def make(*specs: DeviceSpec) -> NvmlDriver:
        folder = tmp_path / f"nvml-{len(drivers)}"
        folder.mkdir()
        driver = NvmlDriver(folder, without_rights(specs or [DeviceSpec()]), library=nvml_library)
        drivers.append(driver)
        stack.callback(driver.close)
        driver.load_in_process()
        stack.enter_context(served(driver))
        return driver

    with contextlib.ExitStack() as stack:
        yield make
        _drop_knobs()  # while the driver is in force that they restore
