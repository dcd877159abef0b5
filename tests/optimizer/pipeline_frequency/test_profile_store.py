"""What was measured, kept and found again; everything else is refused."""

import copy
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency._profile_store import (
    load_profiles,
    profiles_from_json,
    profiles_to_json,
    save_profiles,
)
from zeus_core.optimizer.pipeline_frequency._profiler import InstructionRow, RankProfile

FINGERPRINT = [
    {"place": [rank, 0], "gpu": "A100", "work": [f"forward of stage {rank}"], "identity": {"layers": [1, 2]}}
    for rank in range(2)
]
PROFILES = [RankProfile((InstructionRow(rank, "forward", 1410, 0.05, 0.001, 20.0, 0.1),), 80.0) for rank in range(2)]

amounts = st.floats(0.0, 1e9)
rows = st.builds(
    InstructionRow,
    st.integers(0, 64),
    st.sampled_from(["forward", "backward", "optimizer-step"]),
    st.one_of(st.none(), st.integers(1, 3000)),
    amounts,
    amounts,
    st.one_of(st.none(), amounts),
    amounts,
)
profiles = st.builds(RankProfile, st.lists(rows, max_size=4).map(tuple), st.one_of(st.none(), amounts))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


def good():
    return profiles_to_json(FINGERPRINT, PROFILES)


@given(st.lists(profiles, min_size=2, max_size=2))
def test_profiles_come_through_json_as_they_were(found):
    fields = json.loads(json.dumps(profiles_to_json(FINGERPRINT, found)))
    assert profiles_from_json(fields, FINGERPRINT) == found


def test_profiles_come_back_from_a_file_in_a_new_folder(tmp_path):
    path = tmp_path / "a" / "b" / "profile.json"
    assert load_profiles(path, FINGERPRINT) == []
    save_profiles(path, good())
    assert load_profiles(path, FINGERPRINT) == PROFILES
    assert [it.name for it in path.parent.iterdir()] == ["profile.json"]


def test_a_missing_file_is_nothing_to_speak_of(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert load_profiles(tmp_path / "none.json", FINGERPRINT) == []
    assert load_profiles(tmp_path / "file" / "profile.json", FINGERPRINT) == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"null", b"[]", b"[" * 100_000, json.dumps(good()).encode()[:-9], b"{}"]
)
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(str(path))):
        load_profiles(path, FINGERPRINT)


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    with pytest.raises(UsageError):
        load_profiles(tmp_path, FINGERPRINT)  # a folder
    (tmp_path / "file").write_text("")
    save_profiles(tmp_path / "file" / "profile.json", good())
    save_profiles(tmp_path, good())
    save_profiles(tmp_path / "nul\0.json", good())
    assert len(caplog.records) == 3
    assert all("could not be saved; training continues" in it.message for it in caplog.records)
    assert [it.name for it in tmp_path.iterdir()] == ["file"]


class TestFingerprints:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("gpu", "H100", "the gpu of rank 1 was H100, and is now A100"),
            ("place", [0, 1], r"the place of rank 1 was \[0, 1\], and is now \[1, 0\]"),
            ("work", [], r"the work of rank 1 was \[\], and is now \['forward of stage 1'\]"),
            ("identity", {"layers": 3}, "the identity of rank 1 was {'layers': 3}, and is now {'layers': "),
        ],
    )
    def test_what_differs_is_said(self, name, value, message):
        fields = good()
        fields["fingerprint"] = copy.deepcopy(fields["fingerprint"])
        fields["fingerprint"][1][name] = value
        with pytest.raises(UsageError, match=message):
            profiles_from_json(fields, FINGERPRINT)

    def test_another_number_of_ranks_is_said(self):
        with pytest.raises(UsageError, match="it was measured with 2 ranks; this job has 1"):
            profiles_from_json(good(), FINGERPRINT[:1])

    def test_ranks_that_are_missing_are_said(self):
        with pytest.raises(UsageError, match="it holds profiles of 1 ranks; this job has 2"):
            profiles_from_json({**good(), "ranks": good()["ranks"][:1]}, FINGERPRINT)

    def test_tuples_are_the_same_as_the_lists_they_become(self):
        fingerprint = [{**it, "identity": {"layers": (1, 2)}} for it in FINGERPRINT]
        assert profiles_from_json(json.loads(json.dumps(good())), fingerprint) == PROFILES

    def test_more_than_is_known_here_is_another_job(self):
        fields = {**good(), "fingerprint": [{**it, "new": 1} for it in FINGERPRINT]}
        with pytest.raises(UsageError, match="the new of rank 0 was 1, and is now None"):
            profiles_from_json(fields, FINGERPRINT)


@given(json_values)
def test_junk_is_refused(junk):
    with pytest.raises(UsageError):
        profiles_from_json(junk, FINGERPRINT)


@given(st.sampled_from(["format", "version", "fingerprint", "ranks"]), json_values)
def test_junk_in_a_field_is_refused(name, junk):
    if {**good(), name: junk} == good():
        return
    with pytest.raises(UsageError):
        profiles_from_json({**good(), name: junk}, FINGERPRINT)


@given(json_values)
def test_junk_in_a_rank_is_refused(junk):
    with pytest.raises(UsageError):
        profiles_from_json({**good(), "ranks": [junk, junk]}, FINGERPRINT)


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("junk", [[], {}, "0", True, -1, math.nan, math.inf, 1e400, "fast", None])
def test_junk_in_a_row_is_refused(place, junk):
    if (place, junk) in [(1, "0"), (1, "fast"), (2, None), (5, None)]:
        return
    fields = json.loads(json.dumps(good()))
    fields["ranks"][0]["rows"][0][place] = junk
    with pytest.raises(UsageError, match="cannot be read"):
        profiles_from_json(fields, FINGERPRINT)


@pytest.mark.parametrize("junk", ["80", -1.0, math.nan, math.inf, [], True])
def test_junk_as_waiting_power_is_refused(junk):
    fields = json.loads(json.dumps(good()))
    fields["ranks"][1]["waiting_watts"] = junk
    with pytest.raises(UsageError, match="waiting_watts is"):
        profiles_from_json(fields, FINGERPRINT)
