"""The database of an Optuna storage, and how it is opened by many processes at once."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from zeus_core.adapters import require
from zeus_core.errors import UsageError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

# Processes that begin at the same time make the same tables and rows, and wait for each other's locks. One of them can;
# the others try again for so long, at times of their own.
_PASSING_SECONDS = 60.0
_PASSING_SQLITE = ("is locked", "already exists", "no such table", "UNIQUE constraint failed")
# Of PostgreSQL: serialization, deadlock, lock not available; unique, table or type exists, or is not there yet.
_PASSING_SQLSTATES = {"40001", "40P01", "55P03", "23505", "42P07", "42710", "42P01"}
_OPEN_ATTEMPTS = 20  # at any other fault
_OPEN_SECONDS = 9.0  # of a server: below the next, so that one that does not answer is tried once
_OPEN_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 10  # a server that does not answer holds a training up for no longer
_LOCK_SECONDS = 30.0  # a process waits for the one that writes to SQLite; the driver's 5 s are few on a busy machine

_Answer = TypeVar("_Answer")

_quiet_lock = threading.Lock()  # filters of warnings are those of the process


def check_storage(storage: str) -> str:
    """Return the URL of a storage.

    Raises:
        UsageError: It is no URL of a database, or there is no driver for it.
        ImportError: Optuna is missing or too old; the message names the extra.
    """
    require("optuna")
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        make_url(storage).get_dialect().import_dbapi()
    except (NoSuchModuleError, ImportError) as error:
        hint = "pip install 'psycopg[binary]'" if "postgresql" in storage else "pip install it"
        text = f"storage is {shown_storage(storage)!r}, for which there is no driver: {error}; {hint}"
        raise UsageError(text) from error
    except (ArgumentError, TypeError, ValueError):
        raise UsageError(
            f"storage is {storage!r}; it must be the URL of a database, such as sqlite:///zeus.db or "
            "postgresql+psycopg://user@host/database"
        ) from None
    return storage


def shown_storage(storage: str) -> str:
    """Return the URL of a storage without its password."""
    from sqlalchemy.engine import make_url

    return make_url(storage).render_as_string(hide_password=True)


def open_storage(
    storage: str,
    heartbeat_seconds: int = 60,
    max_retries: int = 0,
    is_retried: Callable[[FrozenTrial], bool] = lambda _: True,
) -> RDBStorage:
    """Open a database, and make its tables. To be called by `patiently`.

    Args:
        storage: Its URL.
        heartbeat_seconds: How often a run says that it is alive. One that has not for twice as long was killed.
        max_retries: How often a run that was killed is tried again.
        is_retried: Whether a run that was killed is one to try again.

    Raises:
        UsageError: The database is of a newer version.
        Exception: It cannot be reached.
    """
    require("optuna")
    import optuna

    callback = _retry_callback(max_retries, is_retried)
    begin = time.monotonic()
    for attempt in itertools.count(1):
        try:
            opened = optuna.storages.RDBStorage(
                storage,
                _engine_arguments(storage),
                heartbeat_interval=heartbeat_seconds,
                grace_period=2 * heartbeat_seconds,
                **callback,
            )
            if opened.engine.dialect.name == "sqlite":
                _lock_before_reading(opened.engine)
            return opened
        except RuntimeError as error:
            raise UsageError(f"storage is {shown_storage(storage)!r}, which cannot be used: {error}") from error
        except Exception as error:
            is_late = time.monotonic() - begin > _OPEN_SECONDS and not storage.startswith("sqlite")
            if is_passing(error) or attempt == _OPEN_ATTEMPTS or is_late:  # the caller is patient with what passes
                raise
            time.sleep(_OPEN_POLL_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def patiently(request: Callable[[], _Answer]) -> _Answer:
    """Make a request, again while it fails by what passes: another process that does the same, or holds a lock.

    Raises:
        Exception: Any other error of it, or the same still after a minute.
    """
    until = time.monotonic() + _PASSING_SECONDS
    while True:
        try:
            return request()
        except Exception as error:
            if not is_passing(error) or time.monotonic() > until:
                raise
        time.sleep(random.uniform(0.5, 1.5) * _OPEN_POLL_SECONDS)


def is_passing(error: BaseException) -> bool:
    """Return whether a fault of a database passes by itself, as that of two processes that make the same row."""
    from sqlalchemy.exc import DBAPIError

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, DBAPIError):  # Optuna puts its own around them
        cause = cause.__cause__
    if cause is None:
        return False
    sqlstate = getattr(cause.orig, "sqlstate", None) or getattr(cause.orig, "pgcode", None)
    return sqlstate in _PASSING_SQLSTATES if sqlstate else any(text in str(cause.orig) for text in _PASSING_SQLITE)


def _engine_arguments(storage: str) -> dict[str, Any]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import NullPool

    # Not connected between two requests: loaders of data fork, and servers end connections that are idle for hours.
    arguments: dict[str, Any] = {"poolclass": NullPool}
    backend = make_url(storage).get_backend_name()
    if backend in {"postgresql", "mysql"}:
        arguments["connect_args"] = {"connect_timeout": _CONNECT_SECONDS}
    elif backend == "sqlite":
        arguments["connect_args"] = {"timeout": _LOCK_SECONDS}
    return arguments


def _retry_callback(max_retries: int, is_retried: Callable[[FrozenTrial], bool]) -> dict[str, Any]:
    """Return the argument of a storage that has killed runs tried again, by its name in this version of Optuna."""
    import optuna

    names = vars(optuna.storages)
    is_renamed = "RetryHeartbeatStaleTrialCallback" in names  # since Optuna 4.9
    kind = names["RetryHeartbeatStaleTrialCallback" if is_renamed else "RetryFailedTrialCallback"]
    retry = kind(max_retry=max_retries)

    def retry_killed(study: Any, trial: FrozenTrial) -> None:
        if is_retried(trial):
            retry(study, trial)

    return {"heartbeat_stale_trial_callback" if is_renamed else "failed_trial_callback": retry_killed}


def _lock_before_reading(engine: Any) -> None:
    """Have transactions of SQLite lock the database when they begin, not when they write first.

    Optuna reads the state of a trial, and then changes it: of two processes that do so at the same time, both would
    find a run killed, and both try it again. Servers lock the row when it is read.
    """
    from sqlalchemy import event

    def connect(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions itself, before the first write

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna from logging that a study was made, and from warning that heartbeats may change."""
    import optuna

    logger = logging.getLogger("optuna")
    with _quiet_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        level = logger.level
        logger.setLevel(max(level, logging.WARNING))
        try:
            yield
        finally:
            logger.setLevel(level)
