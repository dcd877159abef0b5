"""Profiles: fits of measured steps with their errors, tables, and the folder that keeps them."""

import json
import logging
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation import DeviceProfile, allocate
from zeus_core.mixed.allocation._fit import MeasuredBatch
from zeus_core.mixed.allocation.device_profile import keep_profile, kept_profile

BATCHES = (8, 16, 32, 64, 128, 256)
PUBLISHED = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"


def steps(fixed, per_sample, watts, floor=0.0, floor_watts=None, setting=250, batches=BATCHES, noise=0.0):
    random = np.random.default_rng(0)
    kink = (floor - fixed) / per_sample
    for batch in batches:
        seconds = max(floor, fixed + per_sample * batch) * (1 + noise * random.standard_normal())
        full = 1.0 if floor_watts is None else min(1.0, batch / kink)
        yield MeasuredBatch(setting, batch, seconds, (floor_watts or 0) * (1 - full) + watts * full)


def profile(*points):
    return DeviceProfile("NVIDIA A40", tuple(points), 68.0, "resnet")


def test_a_line_is_found_with_its_error():
    (option,) = profile(*steps(0.01, 0.002, 230.0)).options().options
    assert option.fixed_seconds == pytest.approx(0.01)
    assert option.seconds_per_sample == pytest.approx(0.002)
    assert option.power_watts == pytest.approx(230.0)
    assert option.floor_seconds == 0.0
    assert option.measured_batches == (8, 256)
    assert option.time_error_fraction < 1e-9 > option.energy_error_fraction
    (noisy,) = profile(*steps(0.01, 0.002, 230.0, noise=0.05)).options().options
    assert 0.01 < noisy.time_error_fraction < 0.1
    assert noisy.seconds_per_sample == pytest.approx(0.002, rel=0.1)


@pytest.mark.parametrize("batches", [BATCHES, (8, 24)], ids=["many", "two"])
def test_small_batches_that_fill_the_gpu_less_draw_less_power(batches):
    """The GPU is blocked at 60 W for 20 ms of each step, and draws 230 W for the samples."""
    points = []
    for batch in batches:
        seconds = 0.02 + 0.002 * batch
        points.append(MeasuredBatch(250, batch, seconds, (60 * 0.02 + 230 * 0.002 * batch) / seconds))
    (option,) = profile(*points).options(max_batch=512).options
    for batch in (1, 12, 512):
        assert option.joules(batch) == pytest.approx(60 * 0.02 + 230 * 0.002 * batch, rel=1e-9)
    assert option.power_watts == pytest.approx(230.0)
    assert option.energy_error_fraction < 1e-9


def test_scatter_of_the_power_is_no_fixed_energy():
    points = [MeasuredBatch(250, 8, 0.026, 229.0), MeasuredBatch(250, 24, 0.058, 231.0)]
    (option,) = profile(*points).options().options
    assert option.fixed_joules == 0.0
    assert 0.003 < option.energy_error_fraction < 0.006


def test_small_batches_that_the_host_holds_up_are_a_floor():
    (option,) = profile(*steps(0.002, 0.001, 200.0, floor=0.04, floor_watts=40.0)).options().options
    assert option.floor_seconds == pytest.approx(0.04)
    assert option.batch_at_floor == pytest.approx(38, rel=0.01)
    assert option.floor_power_watts == pytest.approx(40.0, rel=0.05)
    assert option.joules(16) == pytest.approx(0.04 * (40 + 160 * 16 / 38), rel=0.03)


def test_steps_that_grow_faster_than_batches_never_come_down_to_nothing():
    (option,) = profile(*steps(-0.05, 0.01, 200.0)).options().options
    assert option.seconds(1) == pytest.approx(option.seconds(8))
    assert option.seconds(8) == pytest.approx(0.03)


@example([(1, 1.0, 1.0), (2, 1.0, 4124.0), (2, 238489.0, 1.0)])  # a line for the energy has a slope above 1e9 W
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.floats(1e-6, 1e6), st.floats(1e-3, 1e6)), min_size=2, max_size=8
    ).filter(lambda rows: len({row[0] for row in rows}) > 1)
)
def test_any_points_fit_or_are_refused(rows):
    points = tuple(MeasuredBatch(250, *row) for row in rows)
    try:
        device = DeviceProfile("any", points, 50.0).options(max_batch=10**6)
    except UsageError:
        assert any(a[0] < b[0] and b[1] < 0.7 * a[1] for a in rows for b in rows)
        return
    for batch in (1, 10, 10**6):
        assert device.options[0].seconds(batch) > 0
        assert math.isfinite(device.options[0].joules(batch))
    assert allocate([device, device], 10).global_batch == 10


def test_without_a_memory_nothing_beyond_what_was_measured_is_planned():
    device = profile(*steps(0.01, 0.002, 230.0)).options()
    assert max(device.largest_batch(option) for option in device.options) == 256
    assert profile(*steps(0.01, 0.002, 230.0)).options(max_batch=512).max_batch == 512


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profile(*steps(0.01, 0.002, 230.0, batches=(8, 8))), "A40: at 250 there is only the batch size 8"),
        (lambda: profile(), r"points is \(\)"),
        (
            lambda: profile(MeasuredBatch(250, 8, 1.0, 100.0), MeasuredBatch(250, 16, 0.5, 100.0)),
            "a step takes 1 s with a batch of 8, but 0.5 s with 16: measure both again",
        ),
        (lambda: MeasuredBatch(250, 8, math.nan, 100.0), "seconds is nan"),
        (lambda: MeasuredBatch(250, 8, 1.0, 1e308), r"watts is 1e\+308"),
        (lambda: MeasuredBatch(250, 0, 1.0, 100.0), "batch is 0"),
        (lambda: DeviceProfile("x", [*steps(0.01, 0.002, 230.0)], -1.0), "blocking_power_watts is -1"),
        (lambda: kept_profile("folder", "x", knob="fan"), "knob is 'fan'"),
    ],
)
def test_wrong_points_are_named(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_profile_comes_back_from_json():
    found = profile(*steps(0.01, 0.002, 230.0))
    assert DeviceProfile.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_profiles_are_kept_by_model_and_work(tmp_path, caplog):
    found = profile(*steps(0.01, 0.002, 230.0))
    keep_profile(found, tmp_path)
    assert kept_profile(tmp_path, "NVIDIA A40", "resnet") == found
    assert kept_profile(tmp_path, "NVIDIA A40", "bert") is None
    assert kept_profile(tmp_path, "NVIDIA A40", "resnet", "SM clock") is None
    (path,) = tmp_path.iterdir()
    path.write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert kept_profile(tmp_path, "NVIDIA A40", "resnet") is None
    assert "is not used" in caplog.text
    assert [file.name.partition(".json")[2] for file in tmp_path.iterdir()] == [".aside-1"]


@pytest.fixture
def table(tmp_path):
    def write(text):
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path

    return write


def test_a_table_of_steps_is_read(table):
    path = table(
        "batch_size,power_limit,seconds,watts\n8,250,0.026,230\n16,250,0.042,230\n8,200,0.03,190\n16,200,0.05,190"
    )
    found = DeviceProfile.from_csv(path, "A40", 68.0)
    assert [option.setting for option in found.options().options] == [250, 200]
    assert found.options().options[0].seconds_per_sample == pytest.approx(0.002)
    assert found.work == ""
    spaced = DeviceProfile.from_csv(
        table("Batch size, limit, seconds, watts\n8, 250, 1, 200\n16, 250, 2, 200"), "A40", 68.0
    )
    assert spaced.points[1] == MeasuredBatch(250, 16, 2.0, 200.0)
    clocks = DeviceProfile.from_csv(
        table("batch_size,sm_clock,seconds,watts\n8,1400,1,200\n16,1400,2,200"), "A40", 68.0
    )
    assert clocks.options().knob == "SM clock"


def test_a_published_table_is_read_for_one_kind_of_work(table):
    rows = "c,net,8,adam,250,100,90\nc,net,16,adam,250,60,120\nc,other,8,adam,250,100,90\n"
    path = table(PUBLISHED + rows)
    found = DeviceProfile.from_csv(path, "V100", 50.0, samples_per_epoch=1000, where={"network": "net"})
    assert found.work == "c/net/adam"
    assert [point.seconds for point in found.points] == pytest.approx([0.8, 0.96])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a column is missing; the first line must be batch_size,power_limit"),
        ("a,b\n1,2\n", "a column is missing"),
        (PUBLISHED + "c,net,8,adam,250,100,90\n", "say how many samples an epoch has"),
        ("batch_size,power_limit,seconds,watts\n", "no row is wanted"),
        ("batch_size,power_limit,seconds,watts\n8,250,nan,230\n", "line 2: seconds is nan"),
        ("batch_size,power_limit,seconds,watts\n8,250,1,1e308\n", r"line 2: watts is 1e\+308"),
        ("batch_size,power_limit,seconds,watts\n8.5,250,1,100\n", "line 2: batch_size is '8.5'"),
        ("batch_size,power_limit,seconds,watts\n8,inf,1,100\n", "line 2: power_limit is 'inf'"),
        ("batch_size,power_limit,seconds,watts\n8,x,1,100\n", "power_limit is 'x', which is not a number"),
        ("batch_size,power_limit,seconds,watts\n8,250,1\n", "as many values as there are columns"),
        ("net,batch_size,power_limit,seconds,watts\na,8,250,1,1\nb,8,250,1,1\n", r"2 kinds of work \(net\): a, b"),
        (
            "batch_size,power_limit,seconds,watts\n8,250,1,100\n",
            "table.csv: A40: at 250 there is only the batch size 8",
        ),
        ("batch_size,power_limit,seconds,watts\n8,250,1,\x00\n", "table.csv"),
    ],
)
def test_a_wrong_table_is_named_with_its_line(table, text, message):
    with pytest.raises(UsageError, match=message):
        DeviceProfile.from_csv(table(text), "A40", 68.0)


def test_a_column_to_choose_by_must_be_there(table):
    path = table("batch_size,power_limit,seconds,watts\n8,250,1,100\n")
    with pytest.raises(UsageError, match="no column 'network' to choose by"):
        DeviceProfile.from_csv(path, "A40", 68.0, where={"network": "x"})
