"""JSON files that say what they hold: written whole, read with checks, set aside when damaged."""

import json
import os
import signal
from pathlib import Path

import pytest

from zeus_core._documents import JsonFormat, JsonStore, parse_json
from zeus_core.errors import UsageError
from zeus_core.files import folder_lock, write_atomically

FORMAT = JsonFormat("zeus-core test", 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.json"


@pytest.fixture
def store(path: Path) -> JsonStore:
    return JsonStore(path, FORMAT, "profile")


def test_fields_survive_a_file(path: Path) -> None:
    FORMAT.write(path, {"a": 1.5})
    assert FORMAT.read(path) == {"a": 1.5}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


@pytest.mark.parametrize("text", ["a\udc80", "x" * 10])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises((OSError, ValueError)):
        write_atomically(path, text)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_disk_before_it_replaces_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FORMAT.write(path, {"a": 1})
    synced = []

    def fsync(descriptor: int) -> None:
        fields = json.loads(Path(f"/dev/fd/{descriptor}").read_text())
        synced.append((fields["a"], FORMAT.read(path)["a"]))

    monkeypatch.setattr("os.fsync", fsync)
    FORMAT.write(path, {"a": 2})
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
        FORMAT.write(path, {"a": float("nan")})
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
        FORMAT.fields(document)


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, '{"a": 1' + "0" * 5000 + "}"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"it is not JSON|it is nested too deeply"):
        parse_json(text)


def test_a_store_without_a_file_has_nothing(store: JsonStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.load(dict) is None
    assert not caplog.records


def test_a_store_keeps_fields(store: JsonStore) -> None:
    store.save({"a": 1})
    store.save({"a": 2})
    assert store.load(lambda fields: fields["a"]) == 2


@pytest.mark.parametrize("contents", [b"\xff", b"{", b"[]", b'{"format": "zeus-core test", "version": 1}'])
def test_a_file_that_cannot_be_read_is_set_aside(
    store: JsonStore, path: Path, contents: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    (path.parent / "file.json.aside-1").write_text("an earlier one")
    path.write_bytes(contents)
    assert store.load(dict) is None
    assert (path.parent / "file.json.aside-2").read_bytes() == contents
    assert not path.exists()
    (record,) = caplog.records
    assert f"the profile {path} is not used" in record.message
    assert "The file is kept as file.json.aside-2" in record.message


def test_a_file_that_the_reader_refuses_is_set_aside(store: JsonStore, path: Path) -> None:
    def refuse(fields: dict[str, object]) -> None:
        raise UsageError("it was measured on other GPUs")

    store.save({"a": 1})
    assert store.load(refuse) is None
    assert json.loads((path.parent / "file.json.aside-1").read_text())["a"] == 1


@pytest.mark.parametrize("name", ["a-folder", "no\0name"])
def test_a_store_never_raises(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a-folder").mkdir()
    store = JsonStore(tmp_path / name, FORMAT, "profile")
    store.save({"a": 1})
    assert "cannot be written" in caplog.text
    assert store.load(dict) is None
