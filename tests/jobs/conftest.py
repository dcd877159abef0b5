"""A database with its tables: to make them takes longer than most of the tests."""

import shutil

import optuna
import pytest


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    optuna.storages.RDBStorage(f"sqlite:///{folder}/zeus.db")
    return folder / "zeus.db"


@pytest.fixture(scope="module")
def quick_check():
    """Optuna reads its ten migrations, 45 ms, whenever a storage is opened: once is enough here."""
    manager = optuna.storages._rdb.storage._VersionManager
    head = optuna.storages.RDBStorage("sqlite://").get_head_version()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "get_head_version", lambda self: head)
        yield


@pytest.fixture
def here(tmp_path, monkeypatch, empty_database, quick_check):
    """An empty database in the current folder, and no GPU."""
    shutil.copy(empty_database, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
