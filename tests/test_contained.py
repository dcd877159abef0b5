"""Methods that no error may leave."""

import pytest

from zeus_core.adapters import contained
from zeus_core.adapters.contained import log_fault
from zeus_core.errors import UsageError


class Hooks:
    @contained
    def hook(self, error, *, answer=None):
        """A hook."""
        if error is not None:
            raise error
        return answer


def test_no_error_leaves_and_the_first_is_logged(caplog):
    hooks = Hooks()
    assert hooks.hook(None, answer=3) == 3
    assert hooks.hook(UsageError("limit is 7")) is None
    assert hooks.hook(KeyError("again")) is None
    assert "Hooks.hook failed; training continues: limit is 7" in caplog.text
    assert "again" not in caplog.text
    Hooks().hook(ZeroDivisionError("a bug"))
    assert "Traceback" in caplog.text, "a bug shows where it is"
    assert hooks.hook.__doc__ == "A hook."


class Feature:
    is_off = False

    def step_aside(self, error):
        self.is_off = True
        log_fault(self, "the feature is off", error)

    @contained(default=list, on_fault=step_aside)
    def values(self, error):
        if error is not None:
            raise error
        return [1]


def test_a_feature_steps_aside_and_a_default_is_returned(caplog):
    feature = Feature()
    assert (feature.values(None), feature.is_off) == ([1], False)
    assert (feature.values(UsageError("limit is 7")), feature.is_off) == ([], True)
    feature.values(KeyError("again"))
    assert [record.getMessage() for record in caplog.records] == ["the feature is off; training continues: limit is 7"]
    assert caplog.records[0].name == __name__


def test_ctrl_c_passes():
    with pytest.raises(KeyboardInterrupt):
        Hooks().hook(KeyboardInterrupt())
