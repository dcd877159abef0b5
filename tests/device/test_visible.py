"""The rules of `CUDA_VISIBLE_DEVICES`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.device.visible import visible_places

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
    assert visible_places(UUIDS, variable) == indices


@given(st.text(alphabet="GPU-abc0123, "))
def test_each_gpu_visible_by_the_variable_is_shown_once_whatever_its_value(variable):
    visible = visible_places(UUIDS, variable)
    assert set(visible) <= set(range(len(UUIDS)))
    assert len(visible) == len(set(visible))


@given(st.permutations(range(len(UUIDS))), st.integers(0, len(UUIDS)))
def test_any_choice_of_indices_shows_these_gpus_in_that_order(order, count):
    chosen = order[:count]
    assert visible_places(UUIDS, ",".join(map(str, chosen))) == chosen


def test_a_machine_without_gpus_shows_none():
    assert visible_places([], None) == []
    assert visible_places([], "0") == []


@pytest.mark.parametrize(
    ("variable", "places"),
    [
        pytest.param(None, [0, 1, 2, 3], id="unset shows it too"),
        pytest.param("2,1,0", [2, 1, 0], id="named by its index"),
        pytest.param("GPU-bbbb,GPU-cccc", [1, 2], id="a UUID that no other GPU has"),
        pytest.param("GPU-bbbb,0,GPU-dddd", [1, 0, 3], id="two of them are not told apart, but take no other's place"),
        pytest.param("GPU-bbbb,GPU-dddd,GPU-eeee,0", [1, 3], id="a third such UUID is invalid"),
        pytest.param("1,1", [], id="named twice shows none at all"),
        pytest.param("GPU-aaaa,GPU-", [0], id="an ambiguous UUID is invalid"),
        pytest.param("MIG-bbbb", [1], id="a part of it"),
    ],
)
def test_a_gpu_whose_uuid_is_unknown_keeps_its_place(variable, places):
    assert visible_places(["GPU-aaaa-1", None, "GPU-cccc-3", None], variable) == places
