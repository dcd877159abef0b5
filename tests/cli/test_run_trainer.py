"""`zeus-core run --trainer`: energy in the logs of trainers whose script nobody edits."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.variants import long_but_first
from zeus_core._launch import launched, lightning_callbacks

THIS = str(Path(launched([sys.executable, "x.py"])[1]))
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
        "from transformers.trainer import Trainer\nprint('enabled', Trainer.__name__, flush=True)",
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
    said = [line for line in enabled.stderr.splitlines() if "not known to run a script or module" not in line]
    assert said[-1:] == plain.stderr.splitlines()[-1:]


def test_programs_that_it_starts_are_reached_too(folder, on_nothing):
    """As torchrun, `accelerate launch` and `trl` start theirs."""
    write(folder / "train.py", TRAINING)
    launcher = write(
        folder / "launch",
        """\
        #!/usr/bin/env python
        import asyncio, subprocess, sys
        subprocess.run([sys.executable, "-u", "train.py", "script"])
        subprocess.check_call(("python", "-m", "train", "module"))
        subprocess.run([sys.executable, "-c", "print('code')"])
        subprocess.run("echo shell", shell=True)
        async def echo():
            await (await asyncio.create_subprocess_exec("echo", "program")).wait()
        asyncio.run(echo())
        try:
            subprocess.run(["no such program"])
        except FileNotFoundError as error:
            print(error.filename)
        """,
    )
    launcher.chmod(0o755)
    ended = run(on_nothing, "./launch", env={**on_nothing.environment, "PATH": f"{Path(PYTHON).parent}:/bin:/usr/bin"})
    assert ended.stderr == ""
    others = ["code", "shell", "program", "no such program"]
    trainings = ["enabled Trainer", "training script", "enabled Trainer", "training module"]
    assert sorted(ended.stdout.splitlines()) == sorted([*others, *trainings])


def test_nothing_happens_unless_it_is_asked_for(folder, on_nothing):
    write(folder / "train.py", TRAINING + "    import os\n    print(os.environ.get('ZEUS'))")
    ended = on_nothing("run", "--quiet", "--", PYTHON, "train.py")
    assert ended.stdout.splitlines() == ["training", "None"]


def test_an_integration_that_fails_costs_a_message_and_nothing_else(folder, on_nothing):
    write(folder / "train.py", TRAINING)
    write(folder / "packages/zeus_huggingface/auto.py", "raise ImportError('too old')")
    ended = run(on_nothing, PYTHON, "train.py")
    assert (ended.returncode, ended.stdout) == (0, "training\n")
    assert "are not measured: ImportError: too old" in ended.stderr


def test_a_command_not_in_python_runs_and_is_reported_as_unreached(folder, on_nothing):
    ended = run(on_nothing, "sh", "-c", "echo $ZEUS; exit 3")
    assert (ended.returncode, ended.stdout) == (3, "1\n")
    assert "sh is not known to run a script or module of Python" in ended.stderr


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ([PYTHON, "x.py", "-m"], [PYTHON, THIS, "x.py", "-m"]),
        (["python3.11", "-um", "x"], None),
        (["python", "-Wignore", "-m", "x", "y"], ["python", "-Wignore", THIS, "-m", "x", "y"]),
        (["/opt/python", "-X", "dev", "-I", "x.py"], ["/opt/python", "-X", "dev", "-I", THIS, "x.py"]),
        (["python", "-c", "1"], None),
        (["python", "-"], None),
        (["python", "--version"], None),
        (["python", "-V"], None),
        (["python", "-m"], None),
        (["python"], None),
        (["python", THIS, "x.py"], None),
        (["pythonista", "x.py"], None),
        (["true"], None),
        (["no such program"], None),
        ([], None),
    ],
)
def test_the_command_that_runs_another(command, result):
    assert launched(command) == result


@pytest.mark.parametrize(
    "shebang",
    [
        "#!/usr/bin/env python3",
        "#!/usr/bin/env -S python3 -u",
        "#!/opt/my python/bin/python3.11",
        "#!/bin/sh\n'''exec' \"/opt/my python/bin/python\" \"$0\" \"$@\"\n' '''",
        "#!/bin/bash",
        "no shebang",
        "#!",
        '#!"',
    ],
)
def test_the_interpreter_of_a_script(tmp_path, shebang):
    script = write(tmp_path / "train", shebang + "\n")
    script.chmod(0o755)
    interpreters = {
        "env python3": ["python3"],
        "env -S": ["python3", "-u"],
        "exec": ["/opt/my python/bin/python"],
    }
    interpreter = next((words for part, words in interpreters.items() if part in shebang), None)
    expected = None if interpreter is None else [*interpreter, THIS, str(script), "1"]
    assert launched([str(script), "1"]) == expected


def test_lightning_is_given_nothing_and_loads_nothing_unless_asked_for(monkeypatch, capsys):
    program = "import sys, zeus_core._launch as launch; print(launch.lightning_callbacks(), 'numpy' in sys.modules)"
    ended = subprocess.run([PYTHON, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.stdout == "[] False\n"
    monkeypatch.setenv("ZEUS", "1")
    monkeypatch.setitem(sys.modules, "zeus_lightning", None)
    assert lightning_callbacks() == []
    assert "are not measured: ModuleNotFoundError" in capsys.readouterr().err
