"""Functions run in forks of this process, which has torch and accelerate imported already."""

import contextlib
import io
import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - or each process imports it itself
from accelerate.state import AcceleratorState, GradientState, PartialState

from tests.support.ranks import torchrun_environments

_ROOT = Path(__file__).parents[2]
_PATH = [str(_ROOT), str(_ROOT / "integrations" / "huggingface"), *filter(None, [os.environ.get("PYTHONPATH")])]


class Results:
    """Messages of a process, in order."""

    def __init__(self, queue: SimpleQueue) -> None:
        self._queue = queue

    def put(self, value: Any) -> None:
        self._queue.put(("value", value))

    def fail(self) -> None:
        self._queue.put(("failure", traceback.format_exc()))

    def get(self) -> Any:
        kind, value = self._queue.get()
        assert kind == "value", value
        return value


def run_processes(
    calls: Sequence[tuple[Any, ...]], read: Callable[[Results], Any] = Results.get, exit_code: int = 0
) -> list[Any]:
    """Make each call, a function and its arguments, in a process; the first argument it gets are its `Results`.

    Returns what `read` makes of the results of each, while the processes run.
    """
    context = multiprocessing.get_context("fork")
    results = [Results(context.SimpleQueue()) for _ in calls]
    processes = [
        context.Process(target=_run, args=arguments, daemon=True) for arguments in zip(results, calls, strict=True)
    ]
    for process in processes:
        process.start()
    answers = [read(result) for result in results]
    for process in processes:
        process.join(240)
        assert process.exitcode == exit_code
    return answers


def _run(results: Results, call: tuple[Any, ...]) -> None:
    function, *arguments = call
    os.environ["PYTHONPATH"] = os.pathsep.join(_PATH)  # of processes that this one starts
    for state in (AcceleratorState, PartialState, GradientState):  # of tests before, in the process that was forked
        state._reset_state()
    try:
        function(results, *arguments)
    except BaseException:
        results.fail()
        raise


def run_script(script: Path, *arguments: object, ranks: int = 1) -> str:
    """Run a script as the shell does, or as torchrun does. Returns what was printed, by the first rank."""
    environments = torchrun_environments(ranks) if ranks > 1 else [{}]
    words = [str(script), *map(str, arguments)]
    return run_processes([(_run_script, words, environment) for environment in environments])[0]


def _run_script(results: Results, words: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        runpy.run_path(words[0], run_name="__main__")
    results.put(printed.getvalue())
