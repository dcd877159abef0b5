"""What a stranger types first: nothing, something misspelt, a narrow terminal, a missing package."""

import json

import pytest

from tests.support.kept_runs import kept_run
from zeus_core.cli.program import all_commands
from zeus_core.cli.text import table
from zeus_core.installed import install_command
from zeus_core.search.objectives import EnergyWithin, MaxSlowdownConstraint
from zeus_core.selfcheck._bench import Finding
from zeus_core.selfcheck.self_check import CheckResult, markdown_section


def test_alone_it_shows_all_commands_in_groups(in_process):
    ended = in_process()
    assert (ended.returncode, ended.stderr) == (0, "")
    groups = {}
    for line in ended.stdout.partition("\n\n")[2].splitlines():
        if line.endswith(":"):
            groups[line.removesuffix(":")] = names = []
        elif line.startswith("  "):
            names.append(line.split()[0])
    assert groups == {
        "Measure and save": ["run", "power", "energy", "top", "doctor"],
        "See what a run took": ["report", "runs", "trace"],
        "Before a run": ["example", "predict", "carbon", "plan", "allocate", "jobs"],
        "For a machine or a cluster": ["exporter", "daemon", "restore"],
    }
    for name, command in all_commands().items():
        assert len(command.SUMMARY) <= 67, "with its name, a line of 80 characters"
        assert "%%" not in in_process(name, "--help").stdout
    assert in_process("--help").stdout == ended.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["powr"], "there is no command 'powr' (did you mean power?); see zeus-core --help"),
        (["run", "sleep", "1"], "its options are its own: zeus-core run -- sleep 1; see zeus-core run --help"),
        (["run", "--quiet", "a b", "-x"], "zeus-core run --quiet -- 'a b' -x;"),
        (["run", "--qiet"], "there is no option '--qiet' (did you mean --quiet?);"),
        (["plan", "x.csv", "--slowdwn"], "there is no option '--slowdwn' (did you mean --slowdown?);"),
        (["plan", "x.csv", "--node-power", "1"], "there is no option '--node-power'; it is an argument of zeus_core."),
        (["trace", "merge", "--ouput=x"], "there is no option '--ouput' (did you mean --output?);"),
        (["report", "nosuch", "--price", "1"], "there is no run at nosuch"),
        (["allocate", "no.csv", "--global-batch", "8", "--gpus", "1"], "there is no file 'no.csv'; give a profile of"),
        (["allocate", "/", "--global-batch", "8"], "'/' is a folder, not a file; give a profile of each model of GPU"),
        (["plan", "gpt3"], "there is no file 'gpt3'; give a profile, or gpt3-like, which is an example"),
        (["plan", "/"], "'/' is a folder, not a file"),
        (["carbon", "DE", "--duration", "3h", "--deadline", "9h"], "there is no file 'DE'"),
        (["carbon", "/", "--duration", "3h", "--deadline", "9h"], "'/' is a folder, not a file"),
        (["trace", "show", "none.json"], "there is no file 'none.json'"),
        (["jobs", "replay", "a.csv", "b.csv", "--job", "x:1:8:9"], "there is no file 'a.csv'"),
        (["report", "output", "--format", "markdown"], "'markdown'; text is Markdown: --format text;"),
        (["example", "hugging"], "there is no example 'hugging'"),
    ],
)
def test_what_is_mistyped_is_explained_in_one_line(in_process, arguments, complaint):
    ended = in_process(*arguments)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_missing_package_is_one_line(on_nothing, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['optuna'] = None")
    on_nothing.environment["PYTHONPATH"] += f":{tmp_path}"
    (tmp_path / "zeus.db").touch()
    ended = on_nothing("jobs", "list", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("zeus-core: optuna is not installed: pip install ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "pip install -e '/a b[plot]'"),
        ({"url": "file:///a.whl", "archive_info": {}}, "pip install '/a.whl[plot]'"),
        ({"url": "https://x/z", "vcs_info": {"vcs": "git"}}, "pip install 'zeus-core[plot] @ git+https://x/z'"),
        (None, "pip install 'zeus-core[plot]'"),
    ],
)
def test_an_extra_comes_from_where_the_package_came(tmp_path, monkeypatch, source, command):
    folder = tmp_path / "zeus_core-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zeus-core\nVersion: 0.1.0\n")
    if source is not None:
        (folder / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("plot") == command


def test_power_as_json_is_one_object(in_process):
    found = json.loads(in_process("power", "--json").stdout)
    assert (found["format"], found["version"]) == ("zeus-core power", 1)
    assert found["power_watts"] == sum(gpu["power_watts"] for gpu in found["gpus"])


def test_energy_as_json_is_one_object(in_process):
    ended = in_process("energy", "--json", "--once", "--period", "0.01")
    found = json.loads(ended.stdout)
    assert (found["format"], found["version"], found["is_simulated"]) == ("zeus-core energy", 1, True)
    assert found["total"]["energy_joules"] == sum(device["energy_joules"] for device in found["devices"])


ROWS = [["GPU", "UUID", "remark"], ["0", "GPU-35ef677a-04b7-5110-98b1-1fa2b66a4bef", "it does not answer " * 3]]


def test_a_table_without_a_terminal_has_one_line_a_row(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(table(ROWS, "><<").splitlines()) == 2


@pytest.mark.parametrize("columns", [70, 80])
def test_a_table_fits_the_terminal_and_breaks_no_name(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = table(ROWS, "><<")
    assert max(map(len, text.splitlines())) <= columns
    assert ROWS[1][1] in text
    assert text.split().count("answer") == 3


def test_nothing_of_a_table_is_lost_in_a_terminal_too_narrow_for_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = table(ROWS, "><<")
    assert ROWS[1][1] in text
    assert text.split().count("answer") == 3


def test_an_example_is_a_program(in_process):
    listed = in_process("example").stdout
    assert "huggingface/train_causal_lm.py" in listed
    ended = in_process("example", "huggingface")
    compile(ended.stdout, "train.py", "exec")
    assert ended.stderr == ""
    assert "zeus-core example pytorch/toy.py > toy.py" in in_process("example", "pytorch").stderr
    assert "zeus-core example deepspeed/ds_config.json > ds_config.json" in in_process("example", "deepspeed").stderr
    assert in_process("example", "slurm").stderr == "", "it names itself in its first lines"


def test_a_report_is_no_pdf_and_a_new_folder_is_named(in_process, tmp_path):
    run = str(kept_run(tmp_path / "run"))
    ended = in_process("report", run, "--output", str(tmp_path / "new" / "report.pdf"))
    assert ended.returncode == 2
    assert "a report is a page (.html)" in ended.stderr
    assert not (tmp_path / "new").exists()
    ended = in_process("report", run, "--output", str(tmp_path / "new" / "report.html"))
    assert (ended.returncode, ended.stderr) == (0, f"zeus-core: made the folder {tmp_path / 'new'}\n")


@pytest.mark.parametrize("selector", [MaxSlowdownConstraint, EnergyWithin])
def test_a_slowdown_like_a_percentage_is_questioned(caplog, selector):
    selector(factor=9.0)
    assert not caplog.records
    selector(factor=110)
    assert caplog.messages == [
        "factor=110 lets steps take 110 times as long; if it is meant as a percentage: 10 % longer is factor=1.1"
    ]


def test_a_no_of_the_selfcheck_is_explained():
    good, bad = Finding("a", 1.0, "s", True), Finding("b", 1.0, "s", False)
    assert "a promise of the documentation does not hold" in markdown_section(CheckResult("c", 1.0, [good, bad]))
    assert "promise" not in markdown_section(CheckResult("c", 1.0, [good]))
