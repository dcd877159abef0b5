"""Profiles that were kept are found again; everything else is refused, with the reason."""

import copy
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipeline_jobs import a_job, measured
from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.profile_store import kept_profile, profile_to_json, save_profile
from zeus_core.pipeline.profile.rank_profile import InstructionRow, RankProfile

JOB = a_job([(0,), (1,)], identity={"layers": [1, 2]})
PROFILE = JobProfile(JOB, (measured(0), measured(1)))

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
    return json.loads(json.dumps(profile_to_json(PROFILE)))


def refusal(fields, caplog, job=JOB):
    """Why the profile of a checkpoint is refused."""
    caplog.clear()
    assert kept_profile(job, fields, None) is None
    (record,) = caplog.records
    return record.message


@given(profiles)
def test_a_profile_comes_through_json_as_it_was(profile):
    assert decode(RankProfile, json.loads(json.dumps(encode(profile)))) == profile


def test_a_profile_comes_back_from_a_checkpoint_and_from_a_new_folder(tmp_path):
    path = tmp_path / "a" / "b" / "profile.json"
    assert kept_profile(JOB, {}, str(path)) is None
    save_profile(str(path), PROFILE)
    assert kept_profile(JOB, {}, str(path)) == PROFILE
    assert kept_profile(JOB, good(), None) == PROFILE
    assert [file.name for file in path.parent.iterdir()] == ["profile.json"]


def test_two_jobs_that_share_a_file_keep_a_profile_each(tmp_path, caplog):
    path = str(tmp_path / "profile.json")
    other = a_job([(0,), (1,)], identity={"layers": [1, 3]})
    save_profile(path, PROFILE)
    assert kept_profile(other, {}, path) is None
    assert "is that of another job: the identity of rank 0 differs: layers was 1, 2, and is now 1, 3" in caplog.text
    save_profile(path, JobProfile(other, PROFILE.ranks))
    assert kept_profile(other, {}, path) == JobProfile(other, PROFILE.ranks)
    assert kept_profile(JOB, {}, path) == PROFILE
    assert not list(tmp_path.glob("*.aside-*"))


def test_jobs_that_save_at_the_same_time_keep_a_profile_each(tmp_path, monkeypatch):
    monkeypatch.setattr("zeus_core.files._LOCK_SECONDS", 100.0)  # the machine may be busy
    jobs = [a_job([(0,), (1,)], identity={"layers": [1, layers]}) for layers in range(4)]
    for number in range(10):
        path = str(tmp_path / f"{number}.json")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda job, path=path: save_profile(path, JobProfile(job, PROFILE.ranks)), jobs))
        assert [kept_profile(job, {}, path).job for job in jobs] == jobs


def test_without_a_file_there_is_no_profile_and_no_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    for path in (None, str(tmp_path / "none.json"), str(tmp_path / "file" / "profile.json")):
        assert kept_profile(JOB, None, path) is None
    assert caplog.records == []


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, json.dumps(good()).encode()[:-9], b"{}"])
def test_a_damaged_file_is_named_and_set_aside(tmp_path, content, caplog):
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    assert kept_profile(JOB, None, str(path)) is None
    assert str(path) in caplog.text
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [content]
    save_profile(str(path), PROFILE)
    assert kept_profile(JOB, None, str(path)) == PROFILE


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "profile.json", tmp_path, tmp_path / "nul\0.json"):
        save_profile(str(path), PROFILE)
    assert len(caplog.records) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


class TestFingerprints:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("gpu", "H100", "the gpu of rank 1 was H100, and is now A100"),
            ("position", [0, 1], "the position of rank 1 was 0, 1, and is now 1, 0"),
            ("work", [], "the work of rank 1 was nothing, and is now backward of stage 1, forward of stage 1"),
            (
                "identity",
                {"layers": 3, "dtype": "bf16"},
                "the identity of rank 1 differs: layers was 3, and is now 1, 2; dtype was ",
            ),
            ("new", 1, "the new of rank 1 was 1, and is now not known"),
        ],
    )
    def test_the_difference_is_named(self, name, value, message, caplog):
        fields = good()
        fields["fingerprint"][1][name] = value
        assert message in refusal(fields, caplog)

    def test_another_number_of_ranks_is_named(self, caplog):
        fields = good()
        assert "it was measured with 2 ranks; this job has 1" in refusal(fields, caplog, a_job([(0,)]))
        fields["ranks"].pop()
        assert "it holds profiles of 1 ranks; this job has 2" in refusal(fields, caplog)

    def test_a_tuple_is_the_same_as_the_list_it_becomes(self):
        job = a_job([(0,), (1,)], identity={"layers": (1, 2)})
        assert kept_profile(job, good(), None) == replace(PROFILE, job=job)

    def test_clocks_that_the_job_cannot_set_are_named(self, caplog):
        fields = good()
        fields["ranks"][1]["rows"][0]["clock_mhz"] = 1987
        assert "it has clocks that this job cannot set: [1987] MHz" in refusal(fields, caplog)


@given(json_values.filter(bool), st.sampled_from(["all", "format", "version", "fingerprint", "ranks", "rank"]))
def test_junk_is_refused(junk, name):
    fields = good()
    if name == "rank":
        fields["ranks"] = [junk, junk]
    elif name == "all":
        fields = junk
    else:
        fields[name] = junk
    if fields != good():
        assert kept_profile(JOB, fields, None) is None


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        ("stage", -1),  # each kind of value, of a wrong type or out of its range; the codec has tests of its own
        ("kind", 1),
        ("clock_mhz", -1),
        ("time_seconds", "fast"),
        ("time_stderr_seconds", -1.0),
        ("energy_joules", math.inf),
        ("energy_stderr_joules", None),
    ],
)
def test_junk_in_a_row_is_named(name, junk):
    fields = copy.deepcopy(encode(PROFILE.ranks[0]))
    fields["rows"][0][name] = junk
    with pytest.raises(UsageError, match=name):
        decode(RankProfile, fields)


@pytest.mark.parametrize(("name", "junk"), [("blocking_power_watts", -1.0), ("switch_seconds", math.nan)])
def test_junk_in_a_profile_is_named(name, junk):
    with pytest.raises(UsageError, match=name):
        decode(RankProfile, {**encode(PROFILE.ranks[0]), name: junk})
