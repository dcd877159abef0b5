"""`zeus-core run` with settings, by a user without any right: the daemon sets what its policy allows, and no more."""

import signal

import pytest

from tests.daemon.conftest import GROUP, MEMBER, ORIGINAL_WATTS, WAIT_SECONDS, needs_root, until
from zeus_core.runs._catalogue import Catalogue

pytestmark = needs_root

POLICY = f"""
group = {GROUP}
[[allow]]
groups = [{GROUP}]
knobs = ["power_limit"]
power_limit_watts = [300, 450]
"""

RUN = """
    import sys
    from zeus_core.cli import main
    sys.exit(main(["run", *{options!r}, "--", "sh", "-c", "echo ready; read line; exit 3"]))
"""


@pytest.fixture
def strict_world(make_world):
    """A daemon that allows limits from 300 W."""
    made = make_world()
    made.write_policy(POLICY)
    made.start_daemon()
    return made


def states(world):
    return [(device.power_limit_watts, device.locked_clock_mhz) for device in world.driver]


def catalogued(folder):
    catalogue = Catalogue(folder / "catalogue")
    assert catalogue.add([folder / "run.json"]) == 1
    (row,) = [row for row in catalogue.table().to_pylist() if not row["device"]]
    return {name: row[name] for name in ("job", "tags", "controlled")}


@pytest.mark.parametrize("end", ["by itself", signal.SIGKILL], ids=str)
def test_a_limit_lasts_as_long_as_the_run(strict_world, end):
    (folder := strict_world.folder / "out").mkdir(mode=0o777)
    folder.chmod(0o777)
    options = ["--limit", "320W", "--output", str(folder / "run.json")]
    process = strict_world.client(RUN.format(options=options), SLURM_JOB_ID="7", ZEUS_TAGS="team=nlp")
    assert process.stdout.readline() == "ready\n"
    assert states(strict_world) == [(320.0, None)]
    if end == "by itself":
        errors = process.communicate("go on\n", timeout=WAIT_SECONDS)[1]
        assert process.returncode == 3
        assert "The power limit was 320 W for the whole run." in errors
        assert catalogued(folder) == {"job": "7", "tags": '{"team": "nlp"}', "controlled": 1}
    else:
        process.send_signal(end)
    until(lambda: states(strict_world) == [(ORIGINAL_WATTS, None)] and strict_world.audited("ended"))
    audited = [(line["uid"], line["job"], line["old"], line["new"]) for line in strict_world.audited("set", "ended")]
    assert audited == [(MEMBER, "7", ORIGINAL_WATTS, 320.0), (MEMBER, "7", 320.0, ORIGINAL_WATTS)]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["--limit", "200W"], {}),  # below the policy
        (["--clock", "1200MHz"], {}),  # not in the policy
        ([], {"ZEUS_LIMIT": "299W", "ZEUS_CLOCK": "1200"}),
        (["--limit", "451W"], {}),
        ([], {"ZEUS_LIMIT": "300W; rm -r /"}),
        ([], {"ZEUS_SAVE": "-1000%"}),
    ],
)
def test_a_hostile_value_gets_no_more_than_the_policy_allows(strict_world, options, variables):
    process = strict_world.client(RUN.format(options=options), **variables)
    output, errors = process.communicate("go on\n", timeout=WAIT_SECONDS)
    assert (process.returncode, output) == ((3, "ready\n") if variables or "451W" not in options else (2, ""))
    assert any(words in errors for words in ("was not changed to", "--limit is", "ignored: ZEUS_"))
    assert states(strict_world) == [(ORIGINAL_WATTS, None)]
    assert not [line for line in strict_world.audited("set") if line["new"] < 300]
    if options == ["--limit", "200W"]:
        (line,) = strict_world.audited("refused")
        assert (line["uid"], line["value"]) == (MEMBER, 200)
        assert f"200 W is not allowed to user {MEMBER}" in line["because"]
