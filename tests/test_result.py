"""The box at the end of a training: what is in it, where it goes, and that it never gets in the way."""

import io
import math
import sys

import pytest

from zeus_core.adapters.result import show_result
from zeus_core.units import duration_text, energy_text

ROWS = {"energy": "62.52 ±0.04 kJ", "spent on": "steps 62 kJ"}


def test_the_box_is_plain_text_with_one_line_for_each_row(capsys):
    show_result(ROWS)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "+- zeus-core --------------+",
        "| energy    62.52 ±0.04 kJ |",
        "| spent on  steps 62 kJ    |",
        "+--------------------------+",
    ]
    assert all(character.isprintable() for line in err.splitlines() for character in line)


def test_the_box_fits_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    show_result({"power limit": " ".join(["300 W is the best"] * 6), "energy": "62 kJ"})
    lines = capsys.readouterr().err.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) < 60
    assert lines[2].startswith("|              ")


def test_without_rows_there_is_no_box(capsys):
    show_result({})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "koi8-r", "utf-16"])
def test_a_terminal_without_the_characters_gets_ascii(monkeypatch, encoding):
    file = io.BytesIO()
    # As Python's own standard error does, the stream would write "\\xb1" instead of raising an error.
    stream = io.TextIOWrapper(file, encoding=encoding, errors="backslashreplace", newline="\n")
    monkeypatch.setattr(sys, "stderr", stream)
    show_result({**ROWS, "measured on": "GPU"})
    lines = file.getvalue().decode(encoding).splitlines()
    assert len({len(line) for line in lines}) == 1, "as wide in ASCII"
    assert "62.52 ±0.04" in lines[1] or "62.52 +-0.04" in lines[1]


class Refusing(io.StringIO):
    """A stream that fails as one of a notebook or a closed pipe may."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("error", [OSError("no space"), BrokenPipeError(), ValueError("closed"), RuntimeError("gone")])
def test_a_stream_that_fails_gets_no_box(monkeypatch, error):
    monkeypatch.setattr(sys, "stderr", Refusing(error))
    show_result(ROWS)


def test_a_closed_stream_or_none_gets_no_box(monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        show_result(ROWS)


@pytest.mark.parametrize(
    ("joules", "uncertainty", "text"),
    [
        (0.0, None, "0 J"),
        (3.7, 178.0, "4 ±178 J"),
        (3.7, 0.0, "3.7 J"),
        (62524.4, 40.2, "62.524 ±0.040 kJ"),
        (999.96, None, "1000 J"),
        (1.5e7, 2e4, "15.000 ±0.020 MJ"),
        (10.0, 2500.0, "0.0 ±2.5 kJ"),
        (10.0, math.inf, "an unknown energy"),
    ],
)
def test_an_energy_and_its_uncertainty_have_one_unit(joules, uncertainty, text):
    assert energy_text(joules, uncertainty) == text


def test_durations_are_in_a_unit_that_people_use():
    assert [duration_text(seconds) for seconds in (0.04, 119.9, 121, 3599.4, 7199, 7500)] == [
        "0.04 s",
        "120 s",
        "2 min 1 s",
        "59 min 59 s",
        "2 h 0 min",
        "2 h 5 min",
    ]


def test_a_box_has_at_most_100_columns_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    text = " ".join(["300 W is the best"] * 20)
    show_result({"power limit": text, "energy": "62 kJ"})
    lines = capsys.readouterr().err.splitlines()
    assert {len(line) for line in lines} <= set(range(90, 101))
    words = " ".join(line[15:-1].strip() for line in lines[1:-2])
    assert words == text
