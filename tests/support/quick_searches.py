"""Programs that search with a step for each trial, as real processes on the driver in C, and tell what they have found.

`make(kind, gpus)` makes an optimizer, `walk` takes steps with one, `train` epochs. A story ends with the optimizers to
tell of in `kept`.
"""

import json
import textwrap
import time

__all__ = ["ENDS", "begin", "told", "wait_until"]

ENDS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "normal end": "",
    "exception": "raise RuntimeError",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
}

_PROGRAM = """
    import gc, json, logging, os, signal, sys, threading, time
    from tests.support.hooks import be_patient
    be_patient()  # a block that a busy machine holds up for longer is measured again, and stories count the steps
    from zeus_core.device import discover_gpus
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.optimizer import GlobalClockOptimizer
    from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, OptimumSelector
    from zeus_core.search import GridSearch
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("zeus_core").addHandler(handler)
    gpus = discover_gpus({})
    tried = TRIED

    def make(kind=KIND, gpus=gpus):
        steps = dict(wait_steps=0, warmup_steps=0, profile_steps=1)
        grid = dict(pl_step=5) if tried and kind is GlobalPowerLimitOptimizer else {}
        return kind(ZeusMonitor(gpus=gpus), Lowest(), **steps, **grid, quiet=True, search=few)

    class Lowest(OptimumSelector):  # steps this short take any time on a busy machine
        def select(self, measurements):
            return min(measurement.power_limit for measurement in measurements)

    def few(settings, selector):
        chosen = tried or settings[-1:]
        return GridSearch([setting for setting in settings if setting in (settings[0], *chosen)], selector)

    def walk(optimizer, steps):
        for _ in range(steps):
            optimizer.on_step_begin()
            time.sleep(0.002)
            optimizer.on_step_end()

    def train(optimizer, epochs=2, steps=4, ends=False):
        if ends:
            optimizer.on_train_begin()
        for _ in range(epochs):
            optimizer.on_epoch_begin()
            walk(optimizer, steps)
            optimizer.on_epoch_end()
        if ends:
            optimizer.on_train_end()

    def facts(optimizer):
        search = optimizer._search
        return {
            "original": search.original,
            "chosen": search.chosen,
            "in_force": search.limiter.setting,
            "tried": [trial.setting for trial in optimizer.trials],
            "result": optimizer.result(),
            "address": hex(id(optimizer)),
        }

    STORY
    found = {"optimizers": [facts(optimizer) for optimizer in kept], "limit_watts": gpus[0].read_power_limit_watts()}
    print(json.dumps({**found, "lines": lines}), flush=True)
    END
"""


def begin(driver, story, end="", kind="GlobalPowerLimitOptimizer", tried=()):
    """Start a program.

    Args:
        driver: Its driver.
        story: What it does.
        end: How it ends, once it has told what it found.
        kind: The usual class of an optimizer.
        tried: The settings that a search tries below the original; the lowest alone if empty.
    """
    story = textwrap.indent(textwrap.dedent(story), " " * 4).strip()
    program = _PROGRAM
    for name, text in {"TRIED": repr(list(tried)), "KIND": kind, "STORY": story, "END": end}.items():
        program = program.replace(name, text)
    return driver.start(program)


def told(process):
    """Return what a program has found."""
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return json.loads(line)


def wait_until(condition):
    """Wait for a condition, for far longer than it takes."""
    until = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
