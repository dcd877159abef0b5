"""A distribution of somebody else adds a command, a section and a framework, with no change of this package."""

import os
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoints

import pytest

from tests.support.kept_runs import kept_run
from zeus_core.cli import program
from zeus_core.installed import COMMANDS, FRAMEWORKS, registered, registered_places

ENTRY_POINTS = """
[zeus_core.commands]
count = stranger.count_command
broken = stranger.missing
half = stranger
ending = stranger.ending
misplaced = stranger.misplaced_command
report = stranger.count_command

[zeus_core.sections]
weather = stranger:weather_section
broken = stranger.missing:section
raising = stranger:raising_section

[zeus_core.frameworks]
toys = stranger:follow_toys
torch = stranger:follow_toys
"""
PACKAGE = """
    import sys

    def weather_section(place, run):
        from zeus_core.report.run_sections import Section
        return Section("weather", "The weather", f"It rained on {place.name} for {run.latest.step} steps."), ""

    def raising_section(place, run):
        raise KeyError("of a stranger")

    def follow_toys():
        print("following", sys.modules["toys"].__name__)
"""
COMMAND = """
    PLACE = "Of a stranger", 90
    SUMMARY = "Count to a number"
    EXAMPLE = "zeus-core count 3"

    def add_arguments(parser):
        parser.add_argument("number", type=int)

    def execute(arguments):
        print(*range(1, arguments.number + 1))
        return 0
"""


@pytest.fixture
def stranger(tmp_path):
    """The folder of the packages of a distribution of somebody else."""
    folder = tmp_path / "packages"
    information, package = folder / "stranger-1.0.dist-info", folder / "stranger"
    information.mkdir(parents=True)
    package.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (package / "__init__.py").write_text(textwrap.dedent(PACKAGE))
    (package / "count_command.py").write_text(textwrap.dedent(COMMAND))
    (package / "misplaced_command.py").write_text(textwrap.dedent(COMMAND) + "PLACE = 'Tools'\n")
    (package / "ending.py").write_text("raise SystemExit(3)\n")
    (folder / "toys.py").write_text("")
    return folder


@pytest.fixture
def zeus_core(stranger):
    """Runs the program with that distribution on the path of Python."""
    path = os.pathsep.join([str(stranger), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "ZEUS_SIMULATED_GPUS": "A40"}

    def run(*arguments, **options):
        command = [sys.executable, *options.pop("python", []), "-m", "zeus_core", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, **options)

    return run


def test_it_adds_a_command_and_what_is_broken_costs_a_line(zeus_core):
    ended = zeus_core("count", 3)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1 2 3\n", "")
    helped = zeus_core("--help")
    assert helped.returncode == 0
    assert "\nOf a stranger:\n  count      Count to a number\n" in helped.stdout
    missing, ending, half, misplaced = sorted(helped.stderr.splitlines())
    assert missing.startswith(
        "zeus-core: left out: ModuleNotFoundError: No module named 'stranger.missing' ('broken' of"
    )
    assert ending.startswith("zeus-core: left out: SystemExit: 3 ('ending' of")
    assert half.startswith("zeus-core: left out: the command 'half' lacks one of PLACE (a group and a number), SUMMARY")
    assert misplaced.startswith("zeus-core: left out: the command 'misplaced' lacks one of PLACE")
    assert "  report     Report where the energy of runs went" in helped.stdout, "nobody takes a name of the core"
    assert "there is no command 'conut' (did you mean count?)" in zeus_core("conut").stderr
    broken = zeus_core("broken")
    assert (broken.returncode, broken.stdout) == (2, "")
    assert "No module named 'stranger.missing'" in broken.stderr


def test_it_adds_a_section_to_the_page_on_a_run(zeus_core, tmp_path):
    kept_run(tmp_path / "output")
    page = tmp_path / "page.html"
    ended = zeus_core("report", tmp_path / "output", "--output", page)
    assert ended.returncode == 0
    assert "The weather" in page.read_text(encoding="utf-8")
    assert "It rained on output for" in page.read_text(encoding="utf-8")
    left_out, raising = ended.stderr.splitlines()
    assert left_out.startswith("zeus-core: a section is left out: ModuleNotFoundError")
    assert raising.startswith("zeus-core: no section 'raising' of ")
    assert raising.endswith("KeyError: 'of a stranger'")


def test_it_follows_a_framework(zeus_core):
    ended = zeus_core("run", "--quiet", "--trainer", "--", sys.executable, "-c", "import toys; print('imported')")
    assert ended.returncode == 0
    assert ended.stdout == "following toys\nimported\n"


def test_a_framework_of_ours_keeps_our_follower(stranger, monkeypatch):
    monkeypatch.syspath_prepend(stranger)
    places = [place for name, place in registered_places(FRAMEWORKS) if name == "torch"]
    assert places == ["zeus_core.pytorch:follow_optimizers", "stranger:follow_toys"]


def test_of_a_damaged_distribution_the_others_count(zeus_core, stranger):
    information = stranger / "damaged-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[zeus_core.commands]\nno equals sign\n")
    ended = zeus_core("count", 3)
    assert (ended.returncode, ended.stdout) == (0, "1 2 3\n")
    assert len(ended.stderr.splitlines()) == 1
    assert "the entry points of a distribution cannot be read" in ended.stderr


def test_where_nothing_is_installed_the_program_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    monkeypatch.setattr("zeus_core.installed._clone_entry_points", dict)  # nor is it a clone
    with pytest.raises(SystemExit):
        program.main(["plan", "gpt3-like"])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "there is no command 'plan'; zeus-core is on the path of Python but not installed" in said
    assert "pip install" in said


def test_a_clone_need_not_be_installed(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    with pytest.raises(SystemExit, match="0"):
        program.main(["plan", "--help"])
    assert "zeus-core plan gpt3-like" in capsys.readouterr().out


def test_the_parts_of_this_package_are_registered_and_can_be_imported():
    problems = []
    found = dict(registered(COMMANDS, problems.append))
    assert problems == []
    assert {"allocate", "daemon", "jobs", "plan", "runs"} <= found.keys()
