"""`zeus-core predict`."""

import json

import pytest

from tests.support.pages import ROOT


def test_without_a_gpu_all_known_models_are_predicted(on_nothing):
    ended = on_nothing("predict")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(model in ended.stdout for model in ("V100-SXM2-32GB", "A40", "H100-SXM5-80GB"))
    assert "Predicted, not measured" in ended.stdout
    assert f"```\n{ended.stdout}```" in (ROOT / "README.md").read_text(encoding="utf-8"), "copy it there"


def test_the_limits_of_this_machine_are_used(in_process, monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40")
    ended = in_process("predict", "--slowdown", "7%", "--json")
    (only,) = json.loads(ended.stdout)["predicted"]
    assert (only["gpu"], only["limits_watts"], only["slowdown_factor"]) == ("A40 (simulated)", [100, 300], 1.07)
    assert 0 <= only["saving"]["low"] < only["saving"]["high"]


def test_a_board_is_given_by_its_limits(in_process):
    ended = in_process("predict", "100-350W", "--draw", "310", "--json")
    first, *_ = json.loads(ended.stdout)["predicted"]
    assert (first["gpu"], first["limits_watts"]) == ("a GPU of 100 to 350 W", [100, 350])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["L40"], "or give its power limits instead, such as 100-350W"),
        (["A40", "--draw", "500"], "--draw is 500, beyond the power limits of A40, 100 to 300 W"),
        (["--slowdown", "1.1"], "argument --slowdown: '1.1' is not a slowdown from 0% to 100%"),
        (["300-100"], "the GPU is '300-100'; give its lowest and its usual limit, such as 100-350W"),
        (["--gpu", "A40"], "there is no option '--gpu'; name the GPU alone: zeus-core predict A100"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(in_process, arguments, complaint):
    ended = in_process("predict", *arguments)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert ended.stderr.count("\n") == 1
