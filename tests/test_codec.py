"""Frozen values to JSON and back: nothing is lost, and junk is named."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError


class Point(NamedTuple):
    name: str
    x: int
    y: float | None


@dataclass(frozen=True)
class Kind:
    kind: str
    value: int


@dataclass(frozen=True)
class Leaf:
    seconds: float
    is_on: bool
    limit: int | None

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise UsageError(f"seconds is {self.seconds!r}; it must be at least 0")


@dataclass(frozen=True)
class Tree:
    method: Literal["counted", "lost", 1]
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]
    by_index: Mapping[int, Leaf]
    by_name: Mapping[str, float | None]
    points: Sequence[Point]
    extra: dict[str, Any]
    either: int | str
    derived: int = field(default=3, init=False)


numbers = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.builds(Leaf, numbers.map(abs), st.booleans(), st.none() | st.integers())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
trees = st.builds(
    Tree,
    method=st.sampled_from(["counted", "lost", 1]),
    leaves=st.lists(leaves, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    by_index=st.dictionaries(st.integers(-(10**18), 10**18), leaves, max_size=3),
    by_name=st.dictionaries(st.text(), st.none() | numbers),
    points=st.lists(st.builds(Point, st.text(), st.integers(), st.none() | numbers), max_size=3).map(tuple),
    extra=st.dictionaries(st.text(), st.integers()),
    either=st.integers() | st.text(),
)
TREE = Tree("lost", (Leaf(1.5, True, None),), (1, "a"), {0: Leaf(0.0, False, 3)}, {}, (), {}, "x")


@given(trees)
def test_a_value_survives_json(tree: Tree) -> None:
    assert decode(Tree, json.loads(json.dumps(encode(tree)))) == tree


@given(json_values)
def test_junk_is_refused_with_one_kind_of_error(junk: Any) -> None:
    with pytest.raises(UsageError):
        decode(Tree, junk)


@given(st.sampled_from(sorted(encode(TREE))), json_values)
def test_a_spoilt_field_is_read_as_its_type_or_refused_by_name(name: str, junk: Any) -> None:
    refused = ""
    try:
        read = decode(Tree, {**encode(TREE), name: junk})
    except UsageError as error:
        refused = str(error)
    assert refused.startswith(f"Tree.{name}") or decode(Tree, encode(read)) == read


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"leaves": [{"seconds": True, "is_on": True, "limit": 1}]},
            r"Tree.leaves\[0\].seconds is True; it must be a",
        ),
        (
            {"leaves": [{"seconds": 1, "is_on": 1, "limit": 1}]},
            r"Tree.leaves\[0\].is_on is 1; it must be true",
        ),
        ({"leaves": [{"seconds": 1, "is_on": True}]}, r"Tree.leaves\[0\] lacks limit; its fields are seconds, is_on"),
        ({"leaves": [{"seconds": -1, "is_on": True, "limit": 1}]}, r"Tree.leaves\[0\]: seconds is -1.0; it must be at"),
        ({"by_index": {"01": {}}}, r"Tree.by_index key is '01'; it must be a whole number as text"),
        ({"by_name": {"red": float("nan")}}, r"Tree.by_name\['red'\] is nan; it must be a finite number"),
        ({"by_name": {"red": 10**400}}, r"Tree.by_name\['red'\] is 10+\.\.\.0+; it must be a finite number"),
        ({"method": True}, "Tree.method is True; it must be one of 'counted', 'lost', 1"),
        ({"pair": [1]}, r"Tree.pair is \[1\]; it must be an array of 2"),
        ({"points": [["a", 1]]}, r"Tree.points\[0\] is \['a', 1\]; it must be an array of 3"),
        ({"either": 1.5}, "Tree.either is 1.5; it must be text"),
        ({"more": 1}, "Tree has unknown more; its fields are method, leaves"),
    ],
)
def test_an_error_names_the_field_its_value_and_what_it_must_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode(Tree, {**encode(TREE), **change})


def test_a_whole_number_is_read_as_the_float_it_stands_for() -> None:
    assert repr(decode(float, 2)) == "2.0"


class Place(NamedTuple):
    color: Literal["red", "blue"]
    number: int
    name: str


@given(
    st.dictionaries(st.builds(Place, st.sampled_from(["red", "blue"]), st.integers(0, 99), st.text()), st.booleans())
)
def test_named_tuples_are_the_names_of_members(places: dict[Place, bool]) -> None:
    assert decode(Mapping[Place, bool], json.loads(json.dumps(encode(places)))) == places
    for damaged in ("red/1", "green/1/x", "red/one/x"):
        with pytest.raises(UsageError, match=r"places key is "):
            decode(Mapping[Place, bool], {damaged: True}, "places")


def test_fields_may_have_any_name() -> None:
    assert decode(Kind, encode(Kind("a", 1))) == Kind("a", 1)


def test_the_name_of_a_value_can_be_given() -> None:
    with pytest.raises(UsageError, match=r"^the profile\[1\] is 'b'; it must be a whole number"):
        decode(list[int], [1, "b"], "the profile")


def test_deep_nesting_is_refused() -> None:
    @dataclass(frozen=True)
    class Chain:
        value: Any

    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(UsageError, match=r"Tree.leaves\[0\] is"):
        decode(Tree, {**encode(TREE), "leaves": nested, "extra": {}})


def test_what_has_no_json_form_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError):
        encode(object())
    with pytest.raises(TypeError):
        encode({(1, 2): 3})
    with pytest.raises(TypeError):
        decode(object, 1)
