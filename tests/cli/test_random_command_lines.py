"""Random command lines: whatever is typed, `zeus-core` ends with a documented exit code and without a traceback."""

import io
import random
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.support.kept_runs import kept_run
from tests.support.variants import long_but_first
from zeus_core.cli import main
from zeus_core.tracing._trace_events import complete
from zeus_core.tracing.facts import DeviceFacts, RankFacts
from zeus_core.tracing.trace_file import Trace, write_trace

HUGE = "1" + "0" * 400
NUMBERS = [
    "0",
    "1",
    "2",
    "-1",
    "0.5",
    "1e300",
    "1e308",
    "5e-324",
    "nan",
    "inf",
    "-inf",
    HUGE,
    "1_0",
    "\u0663",
    " 1",
    "1e",
]
TEXTS = ["", "x", "-", "--", "\0", "\udcff", "x" * 5000, "%s", "{0}", "a=b", "~", "../x", "@file", "\n", "--help"]
FILES = [
    "good.csv",
    "device.csv",
    "broken.csv",
    "single.csv",
    "falling.csv",
    "huge.csv",
    "tiny.csv",
    "short.csv",
    "nested.json",
    "list.json",
    "nan.json",
    "binary",
    "none.csv",
    ".",
]
OUTPUTS = ["out", "out/deep", "good.csv", "/dev/null", "/dev/full", "/proc/none/x", ""]
OPTIONS = {
    "--gpus": ["0", "0,1", "1,1", "0,", *NUMBERS, *TEXTS],
    "--period": ["0.01", *NUMBERS],
    "--count": ["1", *NUMBERS],
    "--seconds": ["0.01", *NUMBERS],
    "--output": OUTPUTS,
    "--microbatches": ["2", "4", *NUMBERS],
    "--schedule": ["1f1b", "gpipe", "interleaved", "interleaved:1", "interleaved:x", "zb-h1", "zbv", "x"],
    "--blocking-power": ["80", "80,75", "1e308", *NUMBERS, *TEXTS],
    "--slowdown": ["10%", "1.1", "101%", *NUMBERS],
    "--draw": ["250", "250W", *NUMBERS],
    "--straggler": ["2", *NUMBERS],
    "--switch-seconds": ["0.005", *NUMBERS],
    "--global-batch": ["24", "64", *NUMBERS],
    "--where": ["network=x", "x=y", *TEXTS],
    "--budget-watts": ["500", *NUMBERS],
    "--level": [],
    "--json": [],
    "--port": ["0", "99999", *NUMBERS, *TEXTS],
    "--address": ["127.0.0.1", *TEXTS],
    "--format": ["html", "text", "json", "csv", "card", "x"],
    "--fail-if": ["energy_j > 1", "energy_j > baseline", "energy_per_token_j", "energy_j >", *TEXTS],
    "--baseline": ["run", *FILES],
    "--location": TEXTS,
    "--training-type": ["fine-tuning", *TEXTS],
    "--intensity": ["380g/kWh", "1EUR/kWh", *NUMBERS, *TEXTS],
    "--price": ["0.3EUR/kWh", *TEXTS],
    "--pue": ["1.2", *NUMBERS],
    "--duration": ["1h", *NUMBERS, *TEXTS],
    "--deadline": ["12h", *NUMBERS, *TEXTS],
    "--points": FILES,
    "--idle-watts": ["60", *NUMBERS],
    "--quiet": [],
    "--need": ["gpus", *TEXTS],
    "--once": [],
    "--stale": [],
    "--version": [],
    "-h": [],
}
OF_COMMAND = {
    "power": ["--gpus", "--period", "--once", "--json"],
    "energy": ["--gpus", "--period", "--once", "--json"],
    "run": ["--gpus", "--output", "--quiet", "--intensity"],
    "carbon": ["--duration", "--deadline", "--points", "--idle-watts"],
    "doctor": ["--json", "--need"],
    "exporter": ["--gpus", "--port", "--address"],
    "restore": ["--stale"],
    "top": ["--gpus", "--period", "--once", "--json"],
    "trace": ["--output", "--json"],
    "allocate": ["--global-batch", "--gpus", "--blocking-power", "--slowdown", "--level", "--budget-watts", "--output"],
    "predict": ["--slowdown", "--draw", "--json"],
    "report": [
        *("--format", "--output", "--fail-if", "--baseline", "--location", "--training-type"),
        *("--intensity", "--price", "--pue"),
    ],
    "plan": [
        *("--microbatches", "--schedule", "--blocking-power", "--gpus", "--slowdown", "--straggler"),
        "--switch-seconds",
    ],
}
LINES = [["predict", gpu] for gpu in ("A40", "100-350W", "1-2", "0-0", "\0")] + [
    ["jobs", "list"],
    ["runs", "sum", "out"],
]
LINES += [
    ["jobs", "replay", "good.csv", "device.csv", "--job", "x:1:2:3"],
    ["example", "x"],
    ["completion"],
    ["replay"],
]
MACHINES = ["A40:2", "A40:2", "A100", "", "x", "A40:99999", "A40:", "\u0663", "A40:1,V100:1"]
UNTIL_CTRL_C = {"power", "energy", "top", "exporter"}
PLANNING = ["--microbatches", "2", "--output", "out"]
ALLOCATING = ["--global-batch", "64", "--blocking-power", "60", "--output", "out"]
DEVICE = """batch_size,power_limit,seconds,watts
16,250,0.04,230
32,250,0.07,235
16,200,0.05,190
32,200,0.09,195
"""
ALWAYS = {
    "carbon": ["carbon.csv,g/kWh,UTC", "--duration", "1h", "--deadline", "12h"],
    "selfcheck": ["--gpu", "999999999"],  # one that no machine here has: else it would take minutes
}
OF_CSV = [*PLANNING, "--blocking-power", "80,75"]


def csv(*options):
    rows = [f"{stage},{kind},{option}" for stage in (0, 1) for kind in ("forward", "backward") for option in options]
    return "\n".join(["stage,instruction,frequency,time,energy", *rows, ""])


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEUS_LEDGER_DIR", str(tmp_path / "out"))  # `restore` is to find nothing of anybody's
    (tmp_path / "good.csv").write_text(csv("1410,0.1,40", "1200,0.12,36"))
    (tmp_path / "huge.csv").write_text(csv("1410,0.1,1e308", "1200,1e308,3e307"))
    (tmp_path / "tiny.csv").write_text(csv("1410,5e-324,40", "1200,1e-300,36"))
    (tmp_path / "device.csv").write_text(DEVICE)
    (tmp_path / "carbon.csv").write_text("time,value\n2026-03-01,312\n2026-03-02,298\n")
    facts = RankFacts(0, 1, "host", 0, devices=(DeviceFacts(0, "GPU-1", "A100"),))
    spans = [complete(0, 0, "x", at, at + 0.07, {}) for at in (0.2, 0.4, 0.8)]
    write_trace(tmp_path / "trace.json", Trace(0, [facts], spans))
    (tmp_path / "broken.csv").write_text(DEVICE.replace("0.04", "nan"))
    (tmp_path / "single.csv").write_text("".join(DEVICE.splitlines(keepends=True)[:2]))
    (tmp_path / "falling.csv").write_text(DEVICE.replace("0.07", "0.01"))
    (tmp_path / "short.csv").write_text("stage,instruction\n0,forward\n")
    (tmp_path / "nested.json").write_text("[" * 100_000 + "]" * 100_000)
    numbers = '"gpus": [1], "blocking_power_watts": [80]'
    fields = f'{{"format": "zeus-core pipeline profile", "version": 2, {numbers}, "instructions": '
    (tmp_path / "deep.json").write_text(fields + "[" * 500 + "]" * 500 + "}")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "nan.json").write_text('{"format": "zeus-core pipeline profile", "version": NaN}')
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    kept_run(tmp_path / "run", steps=2)
    return tmp_path


def random_line(choose):
    command, *positional = choose.choice([*([name] for name in OF_COMMAND), *LINES, [""], ["x"], ["--version"], ["-h"]])
    line = [command, *positional]
    if command == "plan":
        line += [choose.choice(["good.csv", "good.csv", *FILES])]
        line += ["--microbatches", "2", "--output", choose.choice(["out", *OUTPUTS])]
        line += [] if line[1].endswith(".json") else ["--blocking-power", "80"]
    if command == "allocate":
        line += [choose.choice(["device.csv"] * 40 + FILES) for _ in range(choose.randrange(1, 3))]
        line += ["--global-batch", "24", "--blocking-power", "60"]
    line += ALWAYS.get(command, [])
    if command == "exporter":
        line += ["--port", "0"]  # others may run this test now
    if command == "trace":
        traces = ["trace.json"] * 18 + FILES
        line += [choose.choice(["merge", "merge", "show", "x"]), choose.choice(traces), choose.choice(traces)]
        line += [] if line[1] == "show" else ["-o", choose.choice(["out", *OUTPUTS])]
    if command == "report":
        line += [choose.choice(["run"] * 20 + FILES) for _ in range(choose.randrange(1, 3))]
    for _ in range(choose.randrange(4)):
        is_usual = command in OF_COMMAND and OF_COMMAND[command] and choose.random() < 0.8
        name = choose.choice(OF_COMMAND[command] if is_usual else list(OPTIONS))
        values = OPTIONS[name]
        line.append(name)
        if values and choose.random() < 0.95:
            line.append(choose.choice(values))
    if choose.random() < 0.1:
        line.insert(choose.randrange(len(line) + 1), choose.choice(TEXTS))
    return line


@contextmanager
def ctrl_c_after(seconds):
    """Interrupt this process as Ctrl-C does, again and again until the block has ended.

    Python cannot raise what strikes in a finalizer, and tells the hook: there, the next one counts.
    """
    unraisable = sys.unraisablehook

    def interrupt(*_):
        raise KeyboardInterrupt

    def tell(event):
        if event.exc_type is not KeyboardInterrupt:
            unraisable(event)

    handler, sys.unraisablehook = signal.signal(signal.SIGALRM, interrupt), tell
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        sys.unraisablehook = unraisable


def run_in_process(line, seconds=None):
    """Return the exit code, and what was printed; Ctrl-C ends it after some seconds, if any are given."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            with nullcontext() if seconds is None else ctrl_c_after(seconds):
                code = main(line)
        except SystemExit as end:
            code = end.code
    return code, output.getvalue() + errors.getvalue()


def all_files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def check_lines(files, monkeypatch, seed, count):
    choose = random.Random(seed)
    before = all_files(files)
    for _ in range(count):
        line = random_line(choose)
        monkeypatch.setenv("ZEUS_SIMULATED_GPUS", choose.choice(MACHINES))
        code, text = run_in_process(line, 0.05 if line[0] in UNTIL_CTRL_C else None)
        assert code in ({0, 1, 2, 130} if line[0] in UNTIL_CTRL_C else {0, 1, 2}), (line, code, text)
        assert "Traceback" not in text, (line, text)
        told = text.partition("usage:")[0].replace("nan.json", "").replace("'nan'", "")  # but for the argument itself
        assert "nan" not in told.lower() or code == 2, (line, text)  # Ctrl-C may come after a complaint: 130
        assert code != 2 or text.strip(), line
        written = all_files(files) - before
        assert all(name.partition("/")[0] == "out" for name in written), (line, written)


def test_random_command_lines_end_with_a_message(files, monkeypatch):
    check_lines(files, monkeypatch, 0, 60)


@pytest.mark.long
def test_many_random_command_lines_end_with_a_message(files, monkeypatch):
    check_lines(files, monkeypatch, 1, 500)


@pytest.mark.parametrize(
    "arguments",
    long_but_first(
        [
            ["top", "--once"],
            ["--help"],
            ["top", "--json"],
            ["power", "--once"],
            ["energy", "--once", "--period", "0.01"],
        ],
        count=2,
    ),
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_said_and_ends_with_1(on_simulated, arguments):
    with Path("/dev/full").open("w") as full:
        ended = on_simulated(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("zeus-core: the output could not be written: ")
    assert "Traceback" not in ended.stderr


def test_nobody_can_be_told_that_nothing_can_be_written(on_simulated):
    with Path("/dev/full").open("w") as full:
        ended = on_simulated("top", "--once", capture_output=False, stdout=full, stderr=full)
        assert ended.returncode == 1
        ended = on_simulated("run", "--", "true", capture_output=False, stdout=full, stderr=full)
        assert ended.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["power", "--period", "1e300"], "'1e300' is not a number of seconds"),
        (["power", "--period", "5e-324"], "'5e-324' is not a number of seconds"),
        (["energy", "--period", "1e300"], "'1e300' is not a number of seconds"),
        (["plan", "good.csv", "--microbatches", HUGE], "is not a whole number above 0"),
        (["plan", "nested.json", *PLANNING], "the profile nested.json cannot be read: it is nested too deeply"),
        (["plan", "deep.json", *PLANNING], "the profile deep.json cannot be read: "),
        (["plan", "nan.json", *PLANNING], "its version is nan; this program reads version 2"),
        (
            ["plan", "huge.csv", *OF_CSV],
            "energy_joules is 1e\\+308; it must be a finite number, at least 0, up to 1e",
        ),
        (["plan", "tiny.csv", *OF_CSV], "time is 5e-324; it must be a number of seconds above 0"),
        (["plan", "good.csv", *OF_CSV, "--blocking-power", "1e308"], "is 1e\\+308; it must be watts"),
        (["plan", "good.csv", *OF_CSV, "--microbatches", "999999999"], "their product must be at most 1000000"),
        (["plan", "good.csv", *OF_CSV, "--output", ""], "'' is not a path"),
        (["allocate", "device.csv", *ALLOCATING, "--gpus", "1"], "but the devices hold 32 together"),
        (["allocate", "device.csv", *ALLOCATING, "--gpus", "99999"], "at most 10000 can be planned for"),
        (["allocate", "broken.csv", *ALLOCATING], "broken.csv, line 2: seconds is nan"),
        (["allocate", "single.csv", *ALLOCATING], "single.csv: single: at 250 there is only the batch size 16"),
        (["allocate", "falling.csv", *ALLOCATING], "at 250 a step takes .* measure both again"),
        (["allocate", "huge.csv", *ALLOCATING], "huge.csv: a column is missing"),
        (["allocate", "nested.json", *ALLOCATING], "the profile nested.json cannot be read: it is nested too deeply"),
        (
            ["allocate", "device.csv", "device.csv", *ALLOCATING, "--gpus", "1,2,3"],
            "--gpus has 3 values, but there are 2",
        ),
        (["allocate", "device.csv", *ALLOCATING, "--blocking-power", "1e308"], "'1e308' is not a number of watts"),
    ],
)
def test_numbers_and_files_beyond_all_bounds_are_refused(files, arguments, message):
    code, text = run_in_process(arguments)
    assert code == 2
    assert re.search(message, text)
    assert not (files / "out").exists()


def test_random_lines_of_processes_end_as_those_here(files, on_simulated, monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    choose = random.Random(3)
    lines = [line for line in (random_line(choose) for _ in range(40)) if line[0] not in UNTIL_CTRL_C]
    for line in [line for line in lines if "\0" not in "".join(line)][:6]:
        ended = on_simulated(*line)
        assert "Traceback" not in ended.stderr, line
        assert ended.returncode == run_in_process(line)[0], line
