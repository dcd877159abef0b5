"""The rules of `CUDA_VISIBLE_DEVICES`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.device.nvml._visible import visible_uuids

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        pytest.param(None, [0, 1, 2], id="unset shows all"),
        pytest.param("", [], id="empty shows none"),
        pytest.param("  ", [], id="blank shows none"),
        pytest.param("-1", [], id="minus one shows none"),
        pytest.param("1", [1], id="one index"),
        pytest.param("2,0", [2, 0], id="the order is that of the variable"),
        pytest.param(" 2 , 0 ", [2, 0], id="spaces do not matter"),
        pytest.param("0,3,1", [0], id="the list ends before an unknown index"),
        pytest.param("0,-1,1", [0], id="the list ends before minus one"),
        pytest.param("0,,1", [0], id="the list ends before an empty entry"),
        pytest.param("1,none", [1], id="the list ends before a word"),
        pytest.param("3", [], id="an unknown index alone shows none"),
        pytest.param("GPU-cccc-3,GPU-aaaa-1", [2, 0], id="whole UUIDs"),
        pytest.param("GPU-c", [2], id="a UUID may be cut short"),
        pytest.param("GPU-aab,GPU-aaa", [1, 0], id="as long as one GPU alone begins so"),
        pytest.param("GPU-cccc,GPU-aa", [2], id="the list ends before an ambiguous UUID"),
        pytest.param("GPU-dddd", [], id="an unknown UUID shows none"),
        pytest.param("cccc-3", [], id="a UUID begins with GPU-"),
        pytest.param("MIG-cccc-3", [], id="slices of a GPU are not GPUs"),
        pytest.param("1,GPU-cccc", [1, 2], id="indices and UUIDs together"),
        pytest.param("0,1,0", [], id="an index named twice shows none at all"),
        pytest.param("0,GPU-aaaa", [], id="a GPU named by index and UUID shows none at all"),
        pytest.param("0,9,0", [0], id="what follows an invalid entry is not read"),
    ],
)
def test_the_variable_shows(variable, indices):
    assert visible_uuids(UUIDS, variable) == [UUIDS[index] for index in indices]


@given(st.text(alphabet="GPU-abc0123, "))
def test_for_any_value_of_the_variable_each_visible_gpu_is_one_of_the_machine_and_shown_once(variable):
    visible = visible_uuids(UUIDS, variable)
    assert set(visible) <= set(UUIDS)
    assert len(visible) == len(set(visible))


@given(st.permutations(range(len(UUIDS))), st.integers(0, len(UUIDS)))
def test_any_choice_of_indices_shows_these_gpus_in_that_order(order, count):
    chosen = order[:count]
    assert visible_uuids(UUIDS, ",".join(map(str, chosen))) == [UUIDS[index] for index in chosen]


def test_a_machine_without_gpus_shows_none():
    assert visible_uuids([], None) == []
    assert visible_uuids([], "0") == []


@pytest.mark.parametrize(("variable", "indices"), [(None, [0, 2]), ("2,0", [2, 0]), ("0,1,2", [0]), ("GPU-", [])])
def test_a_gpu_that_does_not_answer_keeps_its_index_but_is_never_visible(variable, indices):
    uuids = ["GPU-aaaa-1", "", "GPU-cccc-3"]
    assert visible_uuids(uuids, variable) == [uuids[index] for index in indices]
