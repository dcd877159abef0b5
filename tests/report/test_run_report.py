"""`zeus-core report`, on the files of simulated runs."""

import contextlib
import csv
import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kept_runs import interrupted_run, kept_run
from tests.support.pages import ROOT
from tests.support.variants import long_but_first
from zeus_core.cli import main
from zeus_core.codec import decode, encode
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.report.emissions import charged
from zeus_core.report.fail_if import Condition
from zeus_core.report.page import page, section_html
from zeus_core.report.run_metrics import RUN_METRICS, Quantity, energy_interval, metrics_of
from zeus_core.report.run_page import run_page
from zeus_core.report.run_sections import Section, sections_of
from zeus_core.report.run_text import runs_markdown
from zeus_core.search import GridSearch
from zeus_core.testing import VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.record.power_series import EnergyPoint
from zeus_core.training.record.run_file import read_run
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import duration_text

REGRESSION = "energy_per_token_j > 1.05 * baseline"


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A run with a search, electricity and an evaluation."""
    folder, time_source = tmp_path_factory.mktemp("runs") / "searched", VirtualTime()
    time_source.set_clock(1_772_409_600.0)
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    optimizer = GlobalPowerLimitOptimizer(
        monitor, Energy(), warmup_steps=2, profile_steps=10, pl_step=150, search=GridSearch
    )
    price = ConstantSignal(0.3, "EUR/kWh", source="contract <&>")
    electricity = Electricity(ConstantSignal(380, "g/kWh", source="Germany"), price, 1.2, "Frankfurt")
    with TrainingEnergy(monitor, optimizer, folder=folder, electricity=electricity, quiet=True) as energy:
        for number in range(150):
            with energy.step(samples=4, tokens=512):
                gpu.execute(Work(0.5, 484.9, 0.938, 0.744))
            if number % 100 == 50:
                with energy.during(Activity.EVALUATION):
                    gpu.execute(Work(3.0, 300.0))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return kept_run(tmp_path_factory.mktemp("runs") / "plain")


class Page(HTMLParser):
    """Collects the tags and texts of a page, and whatever it would load."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.loaded, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in {"meta", "link", "br", "img", "input"}:
            self.opened.append(tag)
        self.loaded += [value for name, value in attributes if name in {"src", "href"} and value != "data:,"]
        assert tag != "script"

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.text += data


def page_of(*arguments, tmp_path):
    assert main(["report", *map(str, arguments), "--output", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert len(text) < 2e6
    page = Page(text)
    assert page.opened == page.loaded == []
    assert "url(" not in text
    return page.text, text


def test_the_page_needs_nothing_else_and_says_where_the_energy_went(searched, tmp_path):
    text, source = page_of(searched, tmp_path=tmp_path)
    run = read_run(searched)
    for words in (
        *("Where the energy went", "Ranks and devices", "Power over time", "The search and its choice"),
        *(
            "Settings changed and restored",
            "training has ended",
            "Emissions and cost",
            "contract <&>",
            "Frankfurt",
        ),
        *("What was not measured, and why", "fans, power supplies", "Hardware and versions", "A100-SXM4-80GB"),
        f"{run.latest.search_record().result.chosen} W",
        *("saved by the chosen setting", "longer steps at it"),
    ):
        assert words in text
    assert source.count("<svg") == 3
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory):
    """A run whose search ends at a setting between those it tried."""
    folder, time_source = tmp_path_factory.mktemp("runs") / "adaptive", VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    optimizer = GlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1), max_steps=200)
    with TrainingEnergy(monitor, optimizer, folder=folder, quiet=True) as energy:
        for _ in range(200):
            with energy.step():
                gpu.execute(Work(0.5, 484.9, 0.938, 0.744))
    return folder


def test_the_choice_is_in_table_and_picture_though_it_was_no_trial(adaptive, tmp_path):
    result = read_run(adaptive).latest.search_record().result
    assert result.chosen not in result.trials
    _, source = page_of(adaptive, tmp_path=tmp_path)
    name = f"{result.chosen} {result.unit}"
    table, picture = (re.search(rf'<section id="search">.*?(<{tag}.*?</{tag}>)', source)[1] for tag in ("table", "svg"))
    (row,) = (row for row in re.findall("<tr>.*?</tr>", table) if "<td>chosen</td>" in row)
    trial = result.choices[result.chosen]
    assert f"<td>{name}</td>" in row
    assert f"<td>{duration_text(trial.seconds_per_step)}</td>" in row
    assert f"<td>{trial.steps}</td>" in row
    assert f"{name} (chosen)</text>" in picture
    assert picture.count('<circle class="chosen"') == 1
    assert "<td>original</td>" in table


def test_a_choice_never_measured_is_in_the_table_and_reported_as_such(adaptive):
    run = read_run(adaptive)
    fields = encode(run)
    fields["parts"][-1]["search"]["result"] |= {"choices": {}, "comparison": None}
    (search,) = (section for section in sections_of(decode(RunRecord, fields)) if section.name == "search")
    assert ("not measured", "chosen") in [(row[1], row[-1]) for row in search.rows]


def test_the_table_of_a_search_says_that_its_means_are_not_corrected(adaptive):
    """The choice took +11.3 % there, beside a slowdown of +10.0 %."""
    (search,) = (section for section in sections_of(read_run(adaptive)) if section.name == "search")
    assert "The table has plain means of the steps at each setting." in search.text


def test_one_energy_has_one_interval_in_the_table_of_activities(plain):
    activities = sections_of(read_run(plain))[0]
    steps, total = ({row[0]: row[2] for row in activities.rows}[name] for name in ("steps", "total"))
    assert steps == total


def test_texts_of_others_are_escaped():
    section = Section("it", "<b>title</b>", "$text & more", ("<i>", ""), [("<script>", "a $name"), ("total", "1")])
    text = section_html(section, "<svg></svg>")
    assert Page(text).text == "<b>title</b>$text & more<i><script>a $nametotal1"
    assert "<svg></svg>" in text


def test_every_activity_has_its_color():
    for activity in Activity:
        assert f".fill-{activity} {{ fill: var(--{activity}); }}" in page("", "")
        assert page("", "").count(f" --{activity}: #") == 2, "in light and dark"


def test_a_page_on_many_gpus_and_interruptions_stays_small(searched):
    run = read_run(searched)
    (rank,) = run.latest.ranks
    (device,) = rank.devices
    points = tuple(EnergyPoint(float(number), 300.0 * number) for number in range(240))
    many = replace(rank, devices=(replace(device, power=points),) * 8)
    part = replace(run.latest, ranks=(many,) * 64)
    page = run_page([("run", replace(run, parts=(part,) * 2))])
    assert len(page) < 2e6
    assert "The first 40 of 512 GPUs" in page


def test_runs_are_shown_side_by_side(searched, plain, tmp_path):
    text, _ = page_of(searched, plain, tmp_path=tmp_path)
    assert "The runs side by side" in text
    assert "energy_per_token_j" in text


@pytest.mark.parametrize("form", ["text", "card"])
def test_texts_name_energy_hardware_and_tokens(searched, capsys, form):
    assert main(["report", str(searched), "--format", form]) == 0
    printed = capsys.readouterr().out
    assert "A100-SXM4-80GB (simulated)" in printed
    assert re.search(r"\d ±\d.* kJ", printed)
    assert ("| activity |" in printed) == (form == "text")


@pytest.mark.parametrize(
    ("name", "begin"), [("a.html", "<!DOCTYPE"), ("a.md", "# Energy"), ("a.json", "{"), ("a.csv", "run,name,value")]
)
def test_the_suffix_of_the_file_says_the_format(plain, tmp_path, name, begin):
    assert main(["report", str(plain), "--output", str(tmp_path / "new" / name)]) == 0
    assert (tmp_path / "new" / name).read_text().startswith(begin)


def test_json_has_all_numbers_with_their_intervals_and_the_record(searched, capsys):
    assert main(["report", str(searched), "--format", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["metrics"].keys() <= RUN_METRICS.keys()
    energy = run["metrics"]["energy_j"]
    assert energy["low"] < energy["value"] < energy["high"]
    assert energy["value"] == read_run(searched).account.total.energy_joules
    assert run["metrics"]["co2_eq_g"]["value"] == pytest.approx(energy["value"] / 3.6e6 * 380 * 1.2, rel=0.01)
    assert run["record"]["parts"][0]["ranks"][0]["devices"]


@pytest.mark.parametrize("seed", long_but_first(range(20), 3))
def test_a_planted_regression_fails_and_noise_does_not(plain, tmp_path, seed, capsys):
    noise = kept_run(tmp_path / "noise", seed=seed + 1, steps=10)
    condition = ["--fail-if", REGRESSION, "--baseline", str(plain), "--format", "csv"]
    assert main(["report", str(noise), *condition]) == 0
    assert "passed" in capsys.readouterr().err
    regression = kept_run(tmp_path / "regression", seed=seed + 1, factor=1.1, steps=10)
    assert main(["report", str(regression), *condition]) == 1
    assert "FAILED" in capsys.readouterr().err


def test_a_baseline_of_other_gpus_or_work_is_refused(plain, tmp_path, capsys):
    other = kept_run(tmp_path / "other", model="A40", steps=10)
    condition = ["--fail-if", REGRESSION, "--baseline", str(plain), "--format", "text"]
    assert main(["report", str(other), *condition]) == 2
    assert "differ in GPUs: 1 x A40 (simulated) against 1 x A100" in capsys.readouterr().err
    small, large = (kept_run(tmp_path / f"{size}", parameters=size, steps=5) for size in (1000, 2000))
    assert main(["report", str(small), "--fail-if", REGRESSION, "--baseline", str(large)]) == 2
    assert "parameters: 1000 against 2000" in capsys.readouterr().err


NUMBERS = {"energy_j": Quantity(100.0, 98.0, 102.0), "power_w": Quantity(300.0, 300.0, 300.0)}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("energy_j > 97", True),
        ("energy_j > 99", None),
        ("energy_j > 103", False),
        ("energy_j >= 1.02e2", None),
        ("energy_j < 2 * 52", True),
        ("energy_j<-1", False),
        ("energy_j > 1.05 * baseline", None),
        ("energy_j > 0.9 * baseline", True),
        ("energy_j > -1 * baseline", True),
        ("  energy_j <= baseline ", False),
    ],
)
def test_a_condition_holds_fails_or_is_open(condition, holds):
    baseline = {"energy_j": Quantity(96.0, 95.0, 97.0)}
    assert Condition(condition).judge(NUMBERS, baseline)[0] is holds


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ("energy > 3", "energy is not a number of a run; these are: energy_j, power_w"),
        ("tokens > 3", "tokens is not known of this run; these are: energy_j, power_w"),
        ("energy_j > baseline", "give its run by --baseline RUN"),
        ("energy_j > baseline.power_w", "which is not a name"),
        ("energy_j + power_w > baseline", "which is not a name"),
        ("energy_j > 3 or power_w > 3", "Give the option again for another condition"),
        ("energy_j", "which is not a name"),
        ("1 < energy_j < 3", "which is not a name"),
        ("energy_j == 3", "which is not a name"),
        ("energy_j > 1e999", "which is not a name"),
        ("energy_j > nan", "which is not a name"),
        ("", "which is not a name"),
        ("energy_j > \0", "which is not a name"),
    ],
)
def test_a_condition_that_means_nothing_is_a_clear_error(condition, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)):
        Condition(condition).judge(NUMBERS, None)


@given(st.text(alphabet="energy_j baseline.power_w0123456789+-*/<>=()andor \n", max_size=40))
def test_any_other_text_is_judged_or_a_clear_error(text):
    with contextlib.suppress(UsageError):
        assert Condition(text).judge(NUMBERS, NUMBERS)[0] in {True, False, None}


def test_several_conditions_fail_if_one_does(plain, capsys):
    conditions = ["--fail-if", "energy_j > 1e9", "--fail-if", "steps >= 40"]
    assert main(["report", str(plain), *conditions]) == 1
    assert [line.split(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["energy_j > 1e9", "steps >= 40"]


def test_an_unknown_name_on_the_command_line_lists_those_there_are(plain, capsys):
    assert main(["report", str(plain), "--fail-if", "joules > 3"]) == 2
    assert (
        "joules is not a number of a run; these are: energy_j, energy_kwh, energy_per_token_j"
        in capsys.readouterr().err
    )


def test_unreadable_runs_are_omitted_from_a_report_and_end_a_statement(plain, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["report", str(plain), str(tmp_path / "empty"), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count(",energy_j,") == 1
    assert "left out: " in printed.err
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert main(["report", str(plain), str(tmp_path / "empty"), "--format", "card"]) == 2
    assert main(["report", str(plain), str(plain), "--format", "card"]) == 2
    assert "count twice" in capsys.readouterr().err
    assert main(["report", str(plain), str(plain), "--format", "json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["statement"] is None
    assert "no statement: " in printed.err


def test_csv_has_a_line_for_each_number_of_each_run(plain, searched, capsys):
    assert main(["report", str(plain), str(searched), "--format", "csv"]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    for folder in (plain, searched):
        name = f"{folder.parent.name}/{folder.name}"
        own = {line["name"]: line for line in lines if line["run"] == name}
        metrics = metrics_of(read_run(folder))
        assert own.keys() == metrics.keys()
        assert [float(own["energy_j"][end]) for end in ("value", "low", "high")] == list(metrics["energy_j"])
        assert own["energy_j"]["unit"] == "J"


def test_an_option_of_the_card_alone_is_refused_elsewhere(plain, capsys):
    assert main(["report", str(plain), "--location", "Oslo"]) == 2
    assert "--location is given, which only --format card and json have" in capsys.readouterr().err


def test_a_run_is_charged_afterwards_in_every_format(plain, capsys):
    assert main(["report", str(plain), "--intensity", "380g/kWh", "--price", "0.3EUR/kWh", "--format", "text"]) == 0
    printed = capsys.readouterr().out
    joules = metrics_of(read_run(plain))["energy_j"].value
    assert f"| CO2 equivalent | {joules / 3.6e6 * 380:.3f}" in printed
    assert re.search(r"\| cost \| 0\.000659.* EUR \| by --price", printed)


def test_every_metric_is_known_of_some_run(searched):
    """A name that no run can have would be a promise that nobody keeps."""
    known = metrics_of(read_run(searched)).keys()
    rare = {"energy_redone_j", "host_energy_j", "energy_generation_j", "energy_reference_j", "energy_checkpoint_j"}
    rare |= {"energy_between_steps_j", "energy_waiting_j", "energy_reward_j", "energy_prediction_j", "energy_other_j"}
    rare |= {"generated_tokens", "energy_per_generated_token_j", "energy_per_reward_j"}
    assert RUN_METRICS.keys() - known <= rare


def test_the_page_of_the_documentation_lists_every_metric():
    page = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", page, re.M)
    assert listed == [(name, unit or "", meaning) for name, (unit, meaning) in RUN_METRICS.items()]


EXTREMES = [0, -1, 1e-300, 1e300, 1.7e308, -1e308, 10**18, "", "x" * 3000, "<b>", "\udcff", None, [], {}, True, 1.5]


def places_in(value, found):
    """All places in a JSON value, as pairs of a container and a key."""
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(member, dict | list):
            places_in(member, found)
    return found


def check_damaged(searched, tmp_path, seeds):
    file, text = tmp_path / "run.json", (searched / "zeus-energy" / "run.json").read_text()
    for seed in seeds:
        randomness, fields = random.Random(seed), json.loads(text)
        for _ in range(randomness.randint(1, 3)):
            container, key = randomness.choice(places_in(fields, []))
            container[key] = randomness.choice(EXTREMES)
        file.write_text(json.dumps(fields))
        arguments = randomness.choice(
            [["report", "--format", form] for form in ("html", "text", "json", "csv", "card")]
        )
        arguments = randomness.choice([arguments, [*arguments, "--intensity", "380g/kWh"]])
        assert main([*arguments, str(file), "--output", str(tmp_path / "out")]) in {0, 2}, seed


def test_a_file_that_others_have_changed_is_shown_or_refused(searched, tmp_path):
    check_damaged(searched, tmp_path, range(50))


@pytest.mark.long
def test_many_files_that_others_have_changed_are_shown_or_refused(searched, tmp_path):
    check_damaged(searched, tmp_path, range(1000, 1300))


# Statements.


def metadata_in(card):
    """The metadata that a card has for the Hub."""
    return yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0])


def test_a_statement_has_everything_for_model_cards_and_the_ai_act(searched, capsys):
    assert main(["report", str(searched), "--format", "card", "--training-type", "fine-tuning"]) == 0
    printed = capsys.readouterr().out
    for words in ("with 95 % between", "inside the boundary", "outside the boundary", "energy counters", "GPU hours"):
        assert words in printed
    for words in ("Frankfurt", "at 380 g/kWh (Germany; average)", "PUE 1.2", "simulated: this is an example", "UTC"):
        assert words in printed
    card = metadata_in(printed)["co2_eq_emissions"]
    metrics = metrics_of(read_run(searched))
    assert card["emissions"] == pytest.approx(metrics["co2_eq_g"].value, abs=1e-3)
    assert card.keys() == {"emissions", "source", "training_type", "geographical_location", "hardware_used"}
    assert main(["report", str(searched), "--format", "json"]) == 0
    stated = json.loads(capsys.readouterr().out)["statement"]
    assert stated["energy_joules"]["value"] == metrics["energy_j"].value
    assert stated["co2_eq_emissions"] == {key: value for key, value in card.items() if key != "training_type"}


def test_emissions_are_stated_afterwards_by_a_factor_and_never_guessed(plain, tmp_path, capsys):
    assert main(["report", str(plain), "--format", "card"]) == 0
    assert metadata_in(capsys.readouterr().out) is None
    arguments = ["--intensity", "380g/kWh", "--pue", "1.5", "--location", "Oslo", "--format", "json"]
    assert main(["report", str(plain), *arguments]) == 0
    stated = json.loads(capsys.readouterr().out)["statement"]
    energy, grams = stated["energy_kwh"], stated["co2_eq_grams"]
    for end in ("value", "low", "high"):
        assert grams[end] == pytest.approx(energy[end] * 380 * 1.5)
    assert stated["location"] == "Oslo"


def test_emissions_and_costs_hold_what_killed_parts_may_have_added(tmp_path):
    """Before, the numbers of a run left it out, and the statement on it did not."""
    interrupted_run(tmp_path, 3)
    run = read_run(tmp_path)
    electricity = Electricity(ConstantSignal(380, "g/kWh"), ConstantSignal(-0.1, "EUR/kWh"))
    metrics = metrics_of(charged(run, electricity))
    kilowatt_hours = metrics["energy_kwh"]
    assert list(metrics["co2_eq_g"]) == pytest.approx([380 * end for end in kilowatt_hours])
    value, low, high = kilowatt_hours
    assert list(metrics["cost"]) == pytest.approx([-0.1 * value, -0.1 * high, -0.1 * low])


def test_runs_are_added_up(plain, searched, capsys):
    assert main(["report", str(plain), str(searched), "--format", "json"]) == 0
    stated = json.loads(capsys.readouterr().out)["statement"]
    runs = [energy_interval(read_run(folder)) for folder in (plain, searched)]
    assert stated["energy_joules"]["low"] == pytest.approx(sum(run.low for run in runs))
    assert stated["co2_eq_grams"] is None  # one of them was not charged
    assert len(stated["runs"]) == 2


@pytest.mark.parametrize("seed", long_but_first(range(4)))
def test_the_interval_of_an_interrupted_run_holds_the_truth(tmp_path, seed):
    """`benchmarks/interrupted_runs.py` does this a thousand times."""
    truth = interrupted_run(tmp_path, seed)
    run = read_run(tmp_path)
    energy = energy_interval(run)
    assert energy.low <= truth <= energy.high
    assert run.account.interruptions == 5
    assert energy.high - energy.low < 0.5 * truth  # parts of ten seconds, each with a log of some
    off = run.account.total.measured.uncertainty_joules
    assert energy.value + off < truth  # by what was not recorded


def test_many_runs_are_a_table(searched):
    base = read_run(searched)

    def run_of(number):
        """The energy of number 7 is largest."""
        joules = 1000.0 + number + 3000.0 * (number == 7)
        total = replace(base.account.total, measured=replace(base.account.total.measured, energy_joules=joules))
        return replace(base, account=replace(base.account, total=total))

    runs = [(f"lr: 1/run-{number}", run_of(number)) for number in range(60)]
    text = run_page(runs, [("lr: 1/run-3: it > 1: FAILED: it is 2", True)])
    page = Page(text)
    assert page.loaded == []
    assert "FAILED" in page.text
    assert page.opened == []
    for name, _ in runs:
        assert name in page.text
    assert text.index("run-7<") < text.index("run-59<") < text.index("run-0<")
    markdown = runs_markdown(runs)
    assert all(f"| {name} |" in markdown for name, _ in runs)
    assert markdown.count("\n## ") == 0
    assert len(text) / len(runs) < 10_000


def test_few_runs_are_all_in_full(searched):
    runs = [(f"run {number}", read_run(searched)) for number in range(12)]
    assert run_page(runs).count("<h2>run ") == 12
    assert runs_markdown(runs).count("\n## run ") == 12
