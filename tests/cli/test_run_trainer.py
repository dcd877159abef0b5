"""`zeus-core run --trainer`: trainings in programs that nobody edits, however they are started."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.variants import long_but_first
from zeus_core.cli.run._reached import ReachedPrograms
from zeus_core.environment import reached
from zeus_core.launch import lightning_callbacks
from zeus_core.training import TrainingEnergy

PYTHON = sys.executable


@pytest.fixture
def folder(tmp_path, on_nothing, monkeypatch):
    """A folder with a framework, and an integration that says when it is imported."""
    (tmp_path / "packages" / "transformers").mkdir(parents=True)
    (tmp_path / "packages" / "zeus_huggingface").mkdir()
    write(tmp_path / "packages/transformers/__init__.py", "")
    write(tmp_path / "packages/transformers/trainer.py", "class Trainer: pass")
    write(tmp_path / "packages/zeus_huggingface/__init__.py", "")
    write(
        tmp_path / "packages/zeus_huggingface/auto.py",
        """\
        from transformers.trainer import Trainer
        from zeus_core.environment import note
        def enable():
            note("training")
            print("enabled", Trainer.__name__, flush=True)
        """,
    )
    on_nothing.environment["PYTHONPATH"] += f":{tmp_path / 'packages'}"
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, text):
    path.write_text(textwrap.dedent(text))
    return path


TRAINING = """
    import sys
    import transformers.trainer
    print("training", *sys.argv[1:], flush=True)
"""


def run(program, *command, **options):
    return program("run", "--quiet", "--trainer", "--", *command, **options)


def test_the_integration_follows_the_import_of_its_framework(folder, on_nothing):
    write(folder / "train.py", TRAINING + "    print(transformers.trainer.__spec__.loader)")
    plain = on_nothing("run", "--quiet", "--", PYTHON, "train.py", "1")
    enabled = run(on_nothing, PYTHON, "train.py", "1")
    begin, *rest = enabled.stdout.splitlines()
    assert begin == "enabled Trainer"
    assert [line.partition(" object")[0] for line in rest] == [
        line.partition(" object")[0] for line in plain.stdout.splitlines()
    ]
    assert (enabled.returncode, enabled.stderr) == (0, "")


def test_the_total_is_said_to_be_that_of_the_command_where_a_training_shows_its_own(folder, on_nothing):
    write(folder / "train.py", TRAINING)
    environment = {**on_nothing.environment, "ZEUS_SIMULATED_GPUS": "A40"}
    said = "The total is for the whole command on this machine; the box of a training is for the training alone:"
    for name, expected in (("train.py", 1), ("-V", 0)):
        ended = on_nothing("run", "--trainer", "--", PYTHON, name, env=environment)
        assert (ended.returncode, ended.stderr.count("\n  total ")) == (0, 1)
        assert ended.stderr.count(said) == expected
    ended = on_nothing("run", "--trainer", "--gpus", "0", "--", PYTHON, "train.py")
    assert said not in ended.stderr, "there is no total"


CURIOUS = """
    import os, pickle, sys, threading
    class Something: pass
    print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0])
    print(type(pickle.loads(pickle.dumps(Something()))) is Something is sys.modules["__main__"].Something)
    if "raise" in sys.argv: raise ValueError("of the program")
    threading.Timer(0.1, lambda: print("at the end", sys.modules["__main__"].Something.__name__)).start()
    sys.exit(len(sys.argv))
"""


@pytest.mark.parametrize(
    "command",
    long_but_first(
        [
            ["-m", "program.main", "-x"],
            ["-u", "-W", "ignore", "-X", "utf8", "program/main.py"],
            ["missing.py"],
            ["program/main.py", "a b"],
            ["program/main.py", "raise"],
            ["program"],
            ["-m", "missing"],
            ["-c", "import sys; print(sys.argv)", "1"],
        ],
        count=3,
    ),
    ids=lambda command: " ".join(command),
)
def test_a_program_runs_as_python_itself_runs_it(folder, on_nothing, command):
    (folder / "program").mkdir()
    write(folder / "program" / "main.py", CURIOUS)
    write(folder / "program" / "__main__.py", CURIOUS)
    plain = subprocess.run([PYTHON, *command], env=on_nothing.environment, capture_output=True, text=True)
    enabled = run(on_nothing, PYTHON, *command)
    assert (enabled.returncode, enabled.stdout) == (plain.returncode, plain.stdout)
    said = [line for line in enabled.stderr.splitlines() if "no training was found" not in line]
    assert said[-1:] == plain.stderr.splitlines()[-1:]


# A first line with a space names no program: installers write these instead, which are a script of sh and of Python.
FIRST_LINES = f"""#!/bin/sh\n'''exec' "{PYTHON}" "$0" "$@"\n' '''\n""" if " " in PYTHON else f"#!{PYTHON}\n"
STARTS = {
    "run": '"$P" train.py run',
    "bash": """bash -c '"$P" train.py bash\'""",
    "env": 'env NAME=value "$P" train.py env',
    "nice": 'nice -n 1 "$P" train.py nice',
    "two levels": r"""sh -c 'env "$P" -c "import os; os.system(\"\\\"\$P\\\" train.py two levels\")"'""",
    "module": '"$P" -um train module',
    "script": "./launch script",
    "code": """\"$P\" -c 'import sys, transformers.trainer; print("training", *sys.argv[1:])' code""",
    **{
        name: f'"$P" -c \'import os, shlex, subprocess, sys; W = [sys.executable, "train.py", "{name}"]; {call}\''
        for name, call in {
            "exec": "os.execvpe(W[0], W, dict(os.environ))",
            "spawn": "os.spawnv(os.P_WAIT, W[0], W)",
            "posix_spawn": "os.waitpid(os.posix_spawn(W[0], W, os.environ), 0)",
            "system": "os.system(shlex.join(W))",
            "list": "subprocess.run(W)",
            "shell": "subprocess.run(shlex.join(W), shell=True)",
            "executable": 'subprocess.run(["x", *W[1:]], executable=W[0])',
        }.items()
    },
    **({"uv": 'uv run --no-project --offline -p "$P" train.py uv'} if shutil.which("uv") else {}),
}


def test_programs_are_reached_however_they_are_started(folder, on_nothing):
    write(folder / "train.py", TRAINING)
    write(folder / "launch", FIRST_LINES + "from train import *\n").chmod(0o755)
    write(folder / "starts.sh", "\n".join(STARTS.values()))
    ended = run(on_nothing, "sh", "starts.sh", env={**on_nothing.environment, "P": PYTHON})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [line for name in STARTS for line in ("enabled Trainer", f"training {name}")]


def test_processes_of_multiprocessing_are_reached(folder, on_nothing):
    write(
        folder / "train.py",
        """
        import multiprocessing
        def train(rank):
            import transformers.trainer
            print("training", rank, flush=True)
        if __name__ == "__main__":
            multiprocessing.get_context("spawn").Pool(1).map(train, [7])
        """,
    )
    ended = run(on_nothing, PYTHON, "train.py")
    assert (ended.stdout, ended.stderr) == ("enabled Trainer\ntraining 7\n", "")


@pytest.mark.parametrize("own", ["", "print('own', __name__)", "raise ValueError('own')", "import missing"])
def test_the_sitecustomize_of_the_user_runs_as_without_us(folder, own):
    if own:
        write(folder / "sitecustomize.py", own)
    show = "import sys; print(sys.path, sys.modules.get('sitecustomize')); import importlib.util as u"
    plain, enabled = (
        subprocess.run([PYTHON, "-c", show], env=environment, capture_output=True, text=True, cwd="/")
        for environment in ({"PYTHONPATH": str(folder)}, reached({"PYTHONPATH": str(folder)}))
    )
    assert (enabled.returncode, enabled.stdout, enabled.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_the_path_of_the_environment_keeps_its_meaning():
    first = reached({})["PYTHONPATH"]
    assert reached({"PYTHONPATH": ""})["PYTHONPATH"] == first
    assert reached({"PYTHONPATH": "a::b"})["PYTHONPATH"] == f"{first}:a::b"
    assert reached(reached({"PYTHONPATH": "a"}))["PYTHONPATH"] == f"{first}:a"


def test_a_framework_that_is_looked_for_first_is_followed_when_imported(folder, on_nothing):
    write(
        folder / "train.py",
        "import importlib.util as u\nu.find_spec('transformers.trainer')\n" + textwrap.dedent(TRAINING),
    )
    assert run(on_nothing, PYTHON, "train.py").stdout == "enabled Trainer\ntraining\n"


def imported_microseconds(environment):
    command = [PYTHON, "-X", "importtime", "-c", "pass"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times = [line.split("|") for line in ended.stderr.splitlines()[1:]]
    return {name.strip(): int(cumulative) for _, cumulative, name in times}


def test_a_python_that_trains_nothing_loads_nothing_for_it():
    plain = imported_microseconds({})
    enabled = imported_microseconds(reached({}))
    assert enabled.keys() - plain.keys() <= {"sitecustomize"}
    assert not any("zeus" in name for name in plain)


def test_nothing_happens_unless_it_is_asked_for(folder, on_nothing):
    write(folder / "train.py", TRAINING + "    import os\n    print(os.environ.get('ZEUS'))")
    ended = on_nothing("run", "--quiet", "--", PYTHON, "train.py")
    assert ended.stdout.splitlines() == ["training", "None"]


def test_an_integration_that_fails_costs_a_message_and_nothing_else(folder, on_nothing):
    write(folder / "train.py", TRAINING)
    write(folder / "packages/zeus_huggingface/auto.py", "raise ImportError('too old')")
    ended = run(on_nothing, PYTHON, "train.py")
    assert (ended.returncode, ended.stdout) == (0, "training\n")
    assert "are not measured by zeus_huggingface.auto:enable: ImportError: too old" in ended.stderr


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["sh", "-c", "exit 3"], "no Python program was reached;"),
        ([PYTHON, "-c", "raise SystemExit(3)"], "a Python program ran, without torch;"),
        (
            [PYTHON, "-X", "utf8", "-sE", "-c", "raise SystemExit(3)"],
            "no Python program was reached; Pythons with -I, -E or -S, or without their environment (sudo), are not",
        ),
    ],
)
def test_a_command_without_a_training_is_said_to_have_none(on_nothing, command, found):
    ended = run(on_nothing, *command)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.count("\n") == 1
    assert f"no training was found: {found}" in ended.stderr
    assert ended.stderr.endswith("; see docs/command-line.md\n")


def test_a_program_with_jax_is_told_what_it_can_use(folder, on_nothing):
    write(folder / "packages/jax.py", "")
    ended = run(on_nothing, PYTHON, "-c", "import jax")
    assert "a Python program with JAX ran" in ended.stderr
    assert "--limit 300W" in ended.stderr


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_loop_that_was_killed_is_shown_if_a_line_of_its_journal_is_whole(monitor, gpu, work, is_whole):
    programs = ReachedPrograms({})
    folder = Path(programs.environment["ZEUS"]) / "loop"
    energy = TrainingEnergy(monitor, folder=folder, quiet=True)
    energy.on_train_begin()
    with energy.step():
        gpu.execute(work)
    energy.state_dict()
    (journal,) = folder.glob("*/rank-0.jsonl")
    journal.write_text(journal.read_text() if is_whole else "")  # as on a disk that is full
    programs.end()
    assert len(programs.unfinished) == is_whole
    assert not folder.exists()


def test_lightning_is_given_nothing_and_loads_nothing_unless_asked_for(monkeypatch, capsys):
    program = "import sys, zeus_core.launch as launch; print(launch.lightning_callbacks(), 'numpy' in sys.modules)"
    ended = subprocess.run([PYTHON, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.stdout == "[] False\n"
    monkeypatch.setenv("ZEUS", "1")
    monkeypatch.setitem(sys.modules, "zeus_lightning", None)
    assert lightning_callbacks() == []
    assert "are not measured: ModuleNotFoundError" in capsys.readouterr().err
