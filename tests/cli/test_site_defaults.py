"""Defaults of a site: what counts more, what is ignored, and what is recorded for the catalogue."""

import argparse
import json
import os

import pytest

from tests.support.kept_runs import kept_run
from zeus_core.cli.run._run_options import add_asked, asked_by
from zeus_core.launch import is_on
from zeus_core.optimizer.asked import asked_optimizer, asked_slowdown
from zeus_core.ports import site_defaults
from zeus_core.ports.run_identity import identity_here
from zeus_core.ports.site_defaults import for_catalogue, site_saves, site_words, with_site_defaults

DEFAULTS = {"save": "7%", "tags": {"cluster": "east", "team": "none"}, "catalogue": "/shared/runs"}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Writes the file of a site, and returns an environment that names it."""
    path = tmp_path / "defaults.json"

    def write(content, mode=0o644):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(mode)
        monkeypatch.setenv("ZEUS_DEFAULTS", str(path))
        site_defaults._read.cache_clear()
        return {"ZEUS_DEFAULTS": str(path)}

    yield write
    site_defaults._read.cache_clear()


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", " False"])
def test_whatever_means_off_sets_nothing_and_whatever_else_observes(site, word):
    given = {**site(DEFAULTS), "ZEUS_LIMIT": "300W", "ZEUS": word}
    assert asked(["--save", "5%"], given) == asked([], {"ZEUS": "off"})
    assert asked_slowdown({"ZEUS_SAVE": "5%", "ZEUS": word}) is None
    assert not site_saves(given)
    assert not asked([], {"ZEUS_SAVE": "5%", "ZEUS_OBSERVE": word}).observes
    assert asked([], {"ZEUS_SAVE": "5%", "ZEUS_OBSERVE": "yes"}).observes


def asked(words, environment):
    parser = argparse.ArgumentParser()
    add_asked(parser)
    return asked_by(parser.parse_args(words), environment)


def test_defaults_count_where_the_user_says_nothing(site):
    environment = site(DEFAULTS)
    given = with_site_defaults({**environment, "ZEUS_TAGS": "team=nlp"})
    assert given["ZEUS_SAVE"] == "7%"
    assert given["ZEUS_TAGS"] == "cluster=east,team=none,team=nlp"
    found = asked([], environment)
    assert (found.save, found.finds_trainings, found.must_find) == ("7%", True, False)
    assert "save 7%, tags cluster=east,team=none, catalogue /shared/runs; ZEUS=off" in found.by_site
    assert found.environment(environment)["ZEUS_SAVE"] == "7%"


@pytest.mark.parametrize(
    ("words", "variables", "save"),
    [
        (["--save", "3%"], {}, "3%"),
        ([], {"ZEUS_SAVE": "3%"}, "3%"),
        ([], {"ZEUS_SAVE": ""}, None),
        (["--limit", "300W"], {}, None),
        ([], {"ZEUS_CLOCK": "1200"}, None),
        (["--observe"], {}, None),
    ],
)
def test_a_default_loses_to_what_the_user_says(site, words, variables, save):
    environment = {**site(DEFAULTS), **variables}
    found = asked(words, environment)
    assert found.save == save
    assert "save" not in (found.by_site or "")
    assert with_site_defaults(found.environment(environment)).get("ZEUS_SAVE", "") == (save or "")


def test_a_slowdown_that_cannot_be_read_leaves_the_default_of_the_site(site, capsys):
    """It is ignored, and does not ask for anything: not to save nothing, either."""
    environment = {**site(DEFAULTS), "ZEUS_SAVE": "ten"}
    found = asked([], environment)
    assert "zeus-core: ignored: ZEUS_SAVE is 'ten'; it must be a slowdown" in capsys.readouterr().err
    assert (found.save, found.finds_trainings, found.must_find) == ("7%", True, False)
    assert "save 7%" in found.by_site
    assert with_site_defaults(found.environment(environment))["ZEUS_SAVE"] == "7%"
    assert asked(["--limit", "300W"], environment).save is None
    assert asked(["--save", "3%"], environment).save == "3%"


def test_a_script_whose_slowdown_cannot_be_read_saves_as_the_site_does(site, monkeypatch, caplog, monitor):
    monkeypatch.setenv("ZEUS_SAVE", "ten")
    site(DEFAULTS)
    assert is_on()
    optimizer = asked_optimizer(monitor)
    assert optimizer.optimum_selector.bound_factor == 1.07
    assert "ignored: ZEUS_SAVE is 'ten'; it must be a slowdown such as 10%" in caplog.text
    site({"tags": {"cluster": "east"}})
    assert asked_optimizer(monitor) is None
    assert "nothing is saved: ZEUS_SAVE is 'ten'" in caplog.text


def test_off_turns_defaults_off(site):
    environment = {**site(DEFAULTS), "ZEUS": "off"}
    assert with_site_defaults(environment) is environment
    assert site_words(environment) is None
    assert asked([], environment).save is None


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (DEFAULTS, 0o666, "others can change it: chmod go-w"),
        ("{", 0o644, "Expecting property name"),
        ([], 0o644, "it must be an object of save, tags, catalogue"),
        ({**DEFAULTS, "limit": 3}, 0o644, "it must be an object of save, tags, catalogue"),
        ({"save": "much"}, 0o644, "save is 'much'; it must be a slowdown from 0% to 100%, such as 10%"),
        ({"save": "110%"}, 0o644, "save is '110%'; it must be a slowdown from 0% to 100%, such as 10%"),
        ({"catalogue": "runs"}, 0o644, "catalogue is 'runs'"),
        ({"tags": "x"}, 0o644, "tags is 'x'"),
    ],
)
def test_a_file_that_is_wrong_is_ignored_with_one_line(site, caplog, content, mode, reason):
    environment = site(content, mode)
    assert with_site_defaults(environment) == with_site_defaults(environment) == environment
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the defaults of this site are ignored: ")
    assert reason in line


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give a file away")
def test_a_file_of_somebody_else_is_ignored(site, caplog, tmp_path):
    environment = site(DEFAULTS)
    os.chown(tmp_path / "defaults.json", 64001, -1)
    assert with_site_defaults(environment) == environment
    assert "it belongs to user 64001, and must be root's" in caplog.text


def test_trainers_and_entry_points_read_them(site, monkeypatch):
    for name in ("ZEUS", "ZEUS_SAVE", "ZEUS_TAGS"):
        monkeypatch.delenv(name, raising=False)
    site({"tags": {"cluster": "east"}})
    assert identity_here().cluster == "east"
    with monkeypatch.context() as nameless:
        nameless.setenv("ZEUS_TAGS", "none")
        assert identity_here() is None
    assert not is_on()
    monkeypatch.setenv("ZEUS_SAVE", "3%")
    assert not is_on()  # the site saves nothing
    site(DEFAULTS)
    assert is_on()
    monkeypatch.delenv("ZEUS_SAVE")
    assert is_on()
    monkeypatch.setenv("ZEUS", "off")
    assert not is_on()
    assert identity_here().cluster == ""


def test_a_run_that_ends_is_recorded_for_the_catalogue(site, tmp_path, monkeypatch, caplog):
    site({"catalogue": str(tmp_path / "runs")})
    monkeypatch.setenv("SLURM_JOB_ID", "7/../8")
    for_catalogue("name", lambda: "{}")  # the folder is missing
    assert "this run is not recorded for the catalogue" in caplog.text
    (new := tmp_path / "runs" / "new").mkdir(parents=True)
    for_catalogue("name", lambda: "{}")
    assert [path.name for path in new.iterdir()] == ["7_.._8-name.json"]
    monkeypatch.setenv("ZEUS_TAGS", "none")
    kept_run(tmp_path / "output")
    (name,) = {path.name for path in new.iterdir()} - {"7_.._8-name.json"}
    assert name.startswith("none-"), "who wants to be named nowhere is in no name of a file either"
