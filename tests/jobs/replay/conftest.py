"""A folder with recorded trainings."""

import pytest

from tests.support.recorded import write_recorded


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """A folder with train.csv and summary_power_tiny.csv, which is the current one."""
    monkeypatch.chdir(tmp_path)
    write_recorded(tmp_path / "train.csv", tmp_path / "summary_power_tiny.csv", "letters", 0.9)
    return tmp_path
