"""`zeus_core.measure`: a decorator that needs no monitor."""

import asyncio
import csv
import inspect
import subprocess
import sys

import pytest

import zeus_core
from zeus_core.errors import UsageError
from zeus_core.monitor import measured_calls


@pytest.fixture
def lines(monkeypatch, capsys):
    """Returns the lines that were written on calls so far, each as the name of the function and the rest."""
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    measured_calls._monitor.cache_clear()
    yield lambda: [line.split(": ", 2)[1:] for line in capsys.readouterr().err.splitlines() if "zeus-core: " in line]
    measured_calls._monitor.cache_clear()


def names(lines):
    return [name.rpartition(".")[2] for name, _ in lines]


def test_a_call_gives_its_value_and_a_line(lines):
    @zeus_core.measure
    def train(steps, *, rate=1):
        """Train."""
        return steps, rate

    assert train(3, rate=2) == (3, 2)
    assert (train.__doc__, list(inspect.signature(train).parameters)) == ("Train.", ["steps", "rate"])
    ((_, text),) = lines()
    assert "GPUs " in text
    assert " J (" in text
    assert " Wh), mean " in text


def test_csv_if_asked(lines, tmp_path):
    @zeus_core.measure(log_file=tmp_path / "energy.csv")
    def train():
        pass

    train(), train()
    with (tmp_path / "energy.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["window_name"].rpartition(".")[2] for row in rows] == ["train #1", "train #2"]
    assert float(rows[0]["gpu1_energy"]) >= 0


def test_methods_of_all_kinds(lines):
    class Model:
        @zeus_core.measure
        def fit(self):
            return self

        @classmethod
        @zeus_core.measure
        def make(cls):
            return cls

        @staticmethod
        @zeus_core.measure
        def load():
            return 1

    model = Model()
    assert (model.fit(), Model.make(), Model.load()) == (model, Model, 1)
    assert names(lines()) == ["fit", "make", "load"]


def test_recursion_is_one_call_and_other_functions_are_their_own(lines):
    @zeus_core.measure
    def step():
        pass

    @zeus_core.measure
    def train(depth):
        step()
        if depth:
            train(depth - 1)

    train(2)
    assert names(lines()) == ["step", "step", "step", "train"]


def test_a_call_that_raises_is_measured_and_raises(lines):
    @zeus_core.measure
    def train():
        raise KeyError("no batch")

    with pytest.raises(KeyError, match="no batch"):
        train()
    ((_, text),) = lines()
    assert text.endswith(", ended by KeyError")


def test_tasks_of_an_async_function_are_measured_each(lines):
    @zeus_core.measure
    async def serve(number):
        await asyncio.sleep(0)
        return number

    async def main():
        return await asyncio.gather(serve(1), serve(2))

    assert asyncio.run(main()) == [1, 2]
    assert names(lines()) == ["serve", "serve"]


def test_a_generator_is_measured_until_it_ends(lines):
    @zeus_core.measure
    def epochs():
        sent = yield 1
        yield sent
        return "done"

    def all_of_it():
        return (yield from epochs())

    generator = all_of_it()
    assert (next(generator), generator.send(5)) == (1, 5)
    assert lines() == []
    with pytest.raises(StopIteration, match="done"):
        next(generator)
    unfinished = epochs()
    next(unfinished)
    unfinished.close()
    found = lines()
    assert names(found) == ["epochs", "epochs"]
    assert not any("ended by" in text for _, text in found)


@pytest.mark.parametrize("wrong", [3, int, classmethod(len)], ids=repr)
def test_what_is_no_function_is_refused_where_it_is_decorated(wrong):
    with pytest.raises(UsageError, match="it must be a function, such as in `@zeus"):
        zeus_core.measure(wrong)


def test_without_a_gpu_the_call_goes_on_and_no_energy_is_0(lines, monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    @zeus_core.measure
    def train():
        return 1

    assert train() + train() == 2
    found = lines()
    assert names(found) == ["train", "train"]
    assert not any("GPU" in text for _, text in found)


def test_a_terminal_without_unicode_gets_a_line(lines):
    program = "import zeus_core\n@zeus_core.measure\ndef train(): sum(range(10**5))\ntrain()"
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "ascii", "ZEUS_SIMULATED_GPUS": "A40"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, encoding="ascii"
    )
    assert "zeus-core: train: " in ended.stderr
    assert " +-" in ended.stderr
