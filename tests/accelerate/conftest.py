import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState

from tests.accelerate.loop import Loop


@pytest.fixture(autouse=True)
def forget_accelerators():
    """Accelerate's facts about the process are the same for all accelerators in it."""
    yield
    AcceleratorState._reset_state()
    PartialState._reset_state()
    GradientState._reset_state()


@pytest.fixture
def loop(tmp_path, gpu):
    return Loop(tmp_path, gpu)
