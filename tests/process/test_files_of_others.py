"""Files and links that another user has placed where this program writes: none is followed or used."""

import os
from pathlib import Path

import pytest

from tests.support.users import OTHER_USER, as_other_user, common_folder, needs_root
from zeus_core.cli import main
from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.files import check_only_ours, write_atomically
from zeus_core.monitor._log import WindowLog
from zeus_core.training.account import Account
from zeus_core.training.record.journal import Journal
from zeus_core.training.record.journal_lines import Entry

__all__ = ["common_folder"]


CONTENT = "root:x:0:0\n"
PROFILE = """\
stage,instruction,frequency,time,energy
0,forward,1410,0.1,40
0,forward,1200,0.12,36
0,backward,1410,0.2,80
0,backward,1200,0.24,72
"""


@pytest.fixture
def victim(tmp_path):
    """A file of ours that nothing may change."""
    path = tmp_path / "victim"
    path.write_text(CONTENT)
    yield path
    assert path.read_text() == CONTENT


ENTRY = Entry("run", "part", 0, 1, Account())


@needs_root
def test_a_file_is_not_written_through_a_link_placed_beside_it(common_folder, victim):
    def place_links():
        for process in range(os.getppid() - 10, os.getppid() + 10):
            (common_folder / f"plan.json.unfinished-{process}").symlink_to(victim)

    as_other_user(place_links)
    write_atomically(common_folder / "plan.json", "ours")
    assert (common_folder / "plan.json").read_text() == "ours"
    assert not (common_folder / "plan.json").is_symlink()


def test_the_file_itself_may_be_a_link_which_is_replaced(tmp_path, victim):
    path = tmp_path / "plan.json"
    path.symlink_to(victim)
    write_atomically(path, "ours")
    assert path.read_text() == "ours"


def test_a_name_in_the_way_is_never_opened(tmp_path, victim, monkeypatch):
    (tmp_path / "plan.json.unfinished-00ff").symlink_to(victim)
    monkeypatch.setattr("os.urandom", lambda _: b"\x00\xff")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "plan.json", "ours")


@pytest.mark.parametrize("place", [Path.symlink_to, Path.hardlink_to])
def test_a_journal_that_is_a_link_is_neither_written_nor_read(tmp_path, victim, caplog, place):
    folder = tmp_path / "journal"
    folder.mkdir()
    place(folder / "rank-0.jsonl", victim)
    journal = Journal(folder, 0, 1)
    journal.append(ENTRY)
    journal.append(ENTRY)
    assert "link" in caplog.text
    assert len(caplog.records) == 1
    assert journal.read("run") == [[]]


def test_a_pipe_in_place_of_a_journal_is_not_waited_for(tmp_path, caplog):
    os.mkfifo(tmp_path / "rank-0.jsonl")
    journal = Journal(tmp_path, 0, 1)
    journal.append(ENTRY)
    assert journal.read("run") == [[]]
    assert "cannot be written" in caplog.text


@needs_root
def test_a_log_is_not_written_through_a_link_of_another_user(common_folder, victim):
    as_other_user(lambda: (common_folder / "energy.csv").symlink_to(victim))
    with pytest.raises(UsageError, match=r"log_file is .*: .*a link of user 65534, which is not followed"):
        WindowLog(common_folder / "energy.csv", [0])


def test_a_log_is_written_through_a_link_of_our_own(tmp_path):
    (tmp_path / "latest.csv").symlink_to("energy.csv")
    WindowLog(tmp_path / "latest.csv", [0])
    assert (tmp_path / "energy.csv").read_text().startswith("start_time,")
    assert (tmp_path / "latest.csv").is_symlink()


def test_a_log_may_be_standard_output(capfd):
    WindowLog(Path("/dev/stdout"), [0])


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match="log_file"):
        WindowLog(tmp_path / "a", [0])


@needs_root
def test_a_commands_record_is_not_written_through_another_users_link(common_folder, victim, capsys):
    as_other_user(lambda: (common_folder / "record.json").symlink_to(victim))
    assert main(["run", "--output", str(common_folder / "record.json"), "--", "true"]) == 2
    assert "which is not followed" in capsys.readouterr().err


def test_the_files_of_a_plan_replace_links(tmp_path, victim):
    (tmp_path / "profile.csv").write_text(PROFILE)
    output = tmp_path / "output"
    output.mkdir()
    written = ["plan.json", "frontier.csv", "frontier.svg", "timeline.svg"]
    for name in written:
        (output / name).symlink_to(victim)
    arguments = ["--microbatches", "2", "--blocking-power", "80", "--output", str(output)]
    assert main(["plan", str(tmp_path / "profile.csv"), *arguments]) == 0
    assert sorted(path.name for path in output.iterdir()) == sorted(written)
    assert not any(path.is_symlink() for path in output.iterdir())


def test_devices_are_neither_replaced_nor_set_aside(tmp_path, caplog):
    device = tmp_path / "null"
    os.mkfifo(device)
    document = Document("zeus-core test", 1, dict[str, int], "the profile")
    assert document.load(device) is None
    assert not document.save(device, {"a": 1})
    assert device.is_fifo()
    assert [record.message.partition(" is not")[0].partition(" cannot")[0] for record in caplog.records] == [
        f"the profile {device}"
    ] * 2


def open_to_all(folder):
    folder.chmod(0o1777)


def open_to_the_group(folder):
    folder.chmod(0o775)


def within_an_open_folder(folder):
    folder.parent.chmod(0o777)


def with_a_file_open_to_all(folder):
    (folder / "entry.json").touch()
    (folder / "entry.json").chmod(0o666)


def of_another_user(folder):
    os.chown(folder, OTHER_USER, OTHER_USER)


def within_a_folder_of_another_user(folder):
    os.chown(folder.parent, OTHER_USER, OTHER_USER)


def with_a_file_of_another_user(folder):
    (folder / "entry.json").touch()
    os.chown(folder / "entry.json", OTHER_USER, OTHER_USER)


@pytest.mark.parametrize(
    "prepare",
    [
        open_to_all,
        open_to_the_group,
        within_an_open_folder,
        with_a_file_open_to_all,
        *(
            pytest.param(prepare, marks=needs_root)
            for prepare in (of_another_user, within_a_folder_of_another_user, with_a_file_of_another_user)
        ),
    ],
)
def test_a_folder_that_others_can_change_is_not_trusted(tmp_path, prepare):
    folder = tmp_path / "around" / "folder"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    check_only_ours(folder)
    prepare(folder)
    with pytest.raises(PermissionError, match=f"chmod go-w|belongs to user {OTHER_USER}"):
        check_only_ours(folder)
