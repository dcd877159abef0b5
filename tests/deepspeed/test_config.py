"""The block of the configuration: what it may say, and how it is told that it is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.pipeline.optimizer import PipelineFrequencySettings
from zeus_deepspeed._config import KEYS, PerseusConfig, read_perseus_block


def read(**block):
    return read_perseus_block({"train_batch_size": 1, "perseus": block})


def test_without_a_block_there_is_nothing():
    assert read_perseus_block({"train_batch_size": 1}) is None


@pytest.mark.parametrize("name", ["persues", "Perseus", "preseus", "perseous", "persus"])
def test_a_misspelt_block_is_named_with_the_right_name(name):
    with pytest.raises(UsageError, match=f"^the block '{name}' is not known; did you mean 'perseus'\\?$"):
        read_perseus_block({"train_batch_size": 1, name: {"enabled": True}})


def test_blocks_of_others_are_not_taken_for_a_misspelt_one():
    others = {"process": {}, "persist": {}, "personal": {}, "zeus": {}, "pipeline": {}, "persues": 3}
    assert read_perseus_block(others) is None


def test_a_block_that_does_not_say_so_is_not_enabled():
    assert read() == read(enabled="auto") == PerseusConfig(enabled=False)


def test_a_block_that_is_switched_off_is_checked_too():
    assert not read(enabled=False, slowdown_factor=1.1).enabled
    with pytest.raises(UsageError, match=r"^perseus.slowdwn is not known; there are: |did you mean 'slowdown_factor'"):
        read(enabled=False, slowdwn=1)


def test_every_key_has_its_place():
    config = read(
        enabled=True,
        monitor_events=False,
        gpu_index=3,
        strict=True,
        slowdown_factor=1.1,
        check_steps=7,
        plan_path="x",
    )
    settings = PipelineFrequencySettings(slowdown_factor=1.1, check_steps=7, plan_path="x")
    assert config == PerseusConfig(True, False, 3, True, settings)


def test_auto_is_the_default_of_every_key():
    assert read(**dict.fromkeys(KEYS, "auto")) == PerseusConfig()


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"enable": True}, "perseus.enable is not known; did you mean 'enabled'?"),
        (
            {"enabled": True, "slowdown_facter": 1},
            "perseus.slowdown_facter is not known; did you mean 'slowdown_factor'?",
        ),
        ({"zzz": 1}, f"perseus.zzz is not known; there are: {', '.join(KEYS)}"),
        ({"enabled": "yes"}, "perseus.enabled is 'yes'; it must be true or false"),
        ({"monitor_events": 1}, "perseus.monitor_events is 1; it must be true or false"),
        ({"gpu_index": True}, "perseus.gpu_index is True; it must be a whole number, at least 0"),
        ({"gpu_index": -1}, "perseus.gpu_index is -1; it must be a whole number, at least 0"),
        (
            {"slowdown_factor": "1.1"},
            "perseus.slowdown_factor is '1.1'; it must be 1.0 (no slowdown) to 10.0, such as 1.05",
        ),
        ({"check_steps": 0}, "perseus.check_steps is 0; it must be a whole number, at least 1"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_do(block, message):
    with pytest.raises(UsageError) as raised:
        read(**block)
    assert str(raised.value) == message


@pytest.mark.parametrize("block", [None, True, "auto", [], [("enabled", True)]])
def test_a_block_that_is_none_is_refused(block):
    with pytest.raises(UsageError, match=r'^perseus is .*; it must be a block, such as \{"enabled": true\}$'):
        read_perseus_block({"perseus": block})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(), JSON, max_size=4))
def test_any_block_is_read_or_refused_by_the_name_of_a_key(block):
    config, message = outcome(block)
    if config is None:
        assert any(message.startswith(f"perseus.{key} is ") for key in block)
    else:
        assert config.enabled is (block.get("enabled") is True)
        assert set(block) <= set(KEYS)


def outcome(block):
    try:
        return read(**block), ""
    except UsageError as error:
        return None, str(error)
