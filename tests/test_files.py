"""JSON files that say what they hold: written whole, read with checks, set aside when damaged."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from zeus_core.documents import Document, parse_json
from zeus_core.errors import UsageError
from zeus_core.files import folder_lock, write_atomically

DOCUMENT = Document("zeus-core test", 2, dict[str, Any], "the profile")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.json"


def test_fields_survive_a_file(path: Path) -> None:
    DOCUMENT.write(path, {"a": 1.5})
    assert DOCUMENT.read(path) == {"a": 1.5}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


@pytest.mark.parametrize("text", ["a\udc80", "x" * 10])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises((OSError, ValueError)):
        write_atomically(path, text)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_disk_before_it_replaces_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DOCUMENT.write(path, {"a": 1})
    synced = []

    def fsync(descriptor: int) -> None:
        fields = json.loads(Path(f"/dev/fd/{descriptor}").read_text())
        synced.append((fields["a"], DOCUMENT.read(path)["a"]))

    monkeypatch.setattr("os.fsync", fsync)
    DOCUMENT.write(path, {"a": 2})
    assert synced == [(2, 1)]


def test_a_child_that_is_forked_meanwhile_does_not_keep_a_folder_locked(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with folder_lock(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_number_that_json_lacks_is_not_written(path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        DOCUMENT.write(path, {"a": float("nan")})
    assert not path.exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], 'it does not say "format": "zeus-core test"'),
        ({"format": "another", "version": 2}, 'it does not say "format": "zeus-core test"'),
        ({"format": "zeus-core test", "version": 3}, "its version is 3; this program reads version 2"),
        ({"format": "zeus-core test"}, "its version is None; this program reads version 2"),
    ],
)
def test_another_document_is_refused(document: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DOCUMENT.from_json(document)


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, '{"a": 1' + "0" * 5000 + "}"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"it is not JSON|it is nested too deeply"):
        parse_json(text)


def test_without_a_file_there_is_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert DOCUMENT.load(path) is None
    assert not caplog.records


def test_a_value_is_kept(path: Path) -> None:
    assert DOCUMENT.save(path, {"a": 1})
    assert DOCUMENT.save(path, {"a": 2})
    assert DOCUMENT.load(path) == {"a": 2}


@pytest.mark.parametrize("contents", [b"\xff", b"{", b"[]", b'{"format": "zeus-core test", "version": 1}'])
def test_a_file_that_cannot_be_read_is_set_aside(path: Path, contents: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    (path.parent / "file.json.aside-1").write_text("an earlier one")
    path.write_bytes(contents)
    assert DOCUMENT.load(path) is None
    assert (path.parent / "file.json.aside-2").read_bytes() == contents
    assert not path.exists()
    (record,) = caplog.records
    assert f"the profile {path} is not used" in record.message
    assert "The file is kept as file.json.aside-2" in record.message


def test_a_file_whose_value_is_damaged_is_set_aside(path: Path) -> None:
    DOCUMENT.save(path, {"a": 1})
    assert Document("zeus-core test", 2, dict[str, str]).load(path) is None
    assert json.loads((path.parent / "file.json.aside-1").read_text())["a"] == 1


@pytest.mark.parametrize("name", ["a-folder", "no\0name"])
def test_a_kept_file_is_never_an_error(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a-folder").mkdir()
    assert not DOCUMENT.save(tmp_path / name, {"a": 1})
    assert "cannot be written" in caplog.text
    assert DOCUMENT.load(tmp_path / name) is None
