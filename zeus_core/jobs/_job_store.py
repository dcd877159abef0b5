"""The history of a job in an Optuna storage: a study for each job, a trial for each run."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zeus_core.documents import Document, parse_json
from zeus_core.errors import UsageError
from zeus_core.jobs._job_database import open_storage, patiently, quiet_optuna
from zeus_core.jobs._job_records import (
    JobDeclaration,
    JobRun,
    StoredRun,
    ended,
    record_from_text,
    record_to_text,
)

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_JOB = Document("zeus-core job", 1, JobDeclaration)
_ATTRIBUTE = "zeus"  # of a study: its declaration; of a trial: its record
_BATCH_SIZE = "batch_size"  # the parameter of a trial, which dashboards show
_MAX_BATCH_SIZE = 2**40

# A run asks for its batch size once all that began before it have theirs, which takes each some tenths of a second. If
# none of them gets its own for so long, one was killed in between, and fails once its heartbeats are missed.
_TURN_SECONDS = 30.0
_TURN_POLL_SECONDS = 0.02

_logger = logging.getLogger(__name__)


class JobStore:
    """The history of one job, shared by all processes that run it.

    Args:
        storage: The URL of a database, as Optuna takes it.
        name: The name of the job, and of its study.
        heartbeat_seconds: How often a run says that it is alive. One that has not for twice as long was killed.
        max_retries: How often the batch size of a run that was killed is tried again, before others.

    Raises:
        UsageError: The database is of a newer version, or holds another kind of study under this name.
        Exception: The database cannot be reached.
    """

    def __init__(self, storage: str, name: str, heartbeat_seconds: int = 60, max_retries: int = 1) -> None:
        self._name = name
        with quiet_optuna():
            self._storage = patiently(lambda: open_storage(storage, heartbeat_seconds, max_retries, _is_retried))
            self._study_id = patiently(lambda: self._study_of(name))

    def declare(self, declaration: JobDeclaration) -> None:
        """Keep what a job is declared with; warn of what changed.

        Raises:
            UsageError: Its earlier runs do not compare with new ones.
        """
        earlier = patiently(self.declaration)
        if earlier is not None:
            changed = declaration.differences(earlier, is_defining=True)
            if changed:
                raise UsageError(
                    f"the job {self._name!r} was declared with {'; '.join(changed)}, so that its runs do not compare: "
                    "declare it as before, give it another name, or drop its history by "
                    f"`zeus-core jobs forget {self._name}`"
                )
            changed = declaration.differences(earlier, is_defining=False)
            if changed:
                _logger.warning(
                    "the job %r was declared with %s: its history is kept, and used as far as it fits",
                    self._name,
                    "; ".join(changed),
                )
        if declaration != earlier:
            text = json.dumps(_JOB.to_json(declaration), allow_nan=False)
            patiently(lambda: self._storage.set_study_user_attr(self._study_id, _ATTRIBUTE, text))

    def declaration(self) -> JobDeclaration | None:
        """Return what the job was declared with; None before that.

        Raises:
            UsageError: It was declared by a newer version of this package.
        """
        text = self._storage.get_study_user_attrs(self._study_id).get(_ATTRIBUTE)
        if text is None:
            return None
        try:
            return _JOB.from_json(parse_json(str(text)))
        except UsageError as error:
            raise UsageError(
                f"the job {self._name!r} in the storage cannot be read: {error}; it may be of a newer zeus-core: "
                "pip install -U zeus-core"
            ) from error

    def begin(self, propose: Callable[[Sequence[JobRun], JobRun | None], JobRun]) -> StoredRun:
        """Begin a run.

        Args:
            propose: Makes the record of the new run from the history, and from a run that was killed and is to be done
                again, if there is one.

        Processes that begin at the same time take turns, in the order of the numbers that the database gives them: each
        sees the batch sizes of those before it.
        """
        import optuna

        with quiet_optuna():
            study = optuna.load_study(study_name=self._name, storage=self._storage)
            patiently(lambda: optuna.storages.fail_stale_trials(study))  # those that are to be done again then wait
        number = patiently(self._new_number)
        try:
            patiently(lambda: self.beat(number))
            return StoredRun(number, patiently(lambda: self._given(number, propose)))
        except BaseException:
            self._set_state(number, "FAIL")
            raise

    def beat(self, number: int) -> None:
        """Say that a run is alive."""
        self._storage.record_heartbeat(self._id_of(number))

    def update(self, number: int, record: JobRun) -> None:
        """Replace the record of a run, and show its latest evaluation in dashboards."""
        trial_id = self._id_of(number)
        self._storage.set_trial_user_attr(trial_id, _ATTRIBUTE, record_to_text(record))
        if record.last.metric is not None:
            step = len(record.evaluations)
            self._storage.set_trial_intermediate_value(trial_id, step, record.last.metric)

    def finish(self, number: int | None, record: JobRun) -> None:
        """Keep the record of a run that has ended, once.

        Args:
            number: Its number. If None, as the database could not be reached when it began, or it was taken for dead
                meanwhile, it gets a new one.
            record: The run.
        """
        if number is not None:
            kept = self._trial(number)
            if not kept.state.is_finished():
                self.update(number, record)
                self._set_state(number, _state_name(record), record.last.cost)
                return
        if all(run.record.uid != record.uid or run.record.outcome != record.outcome for run in self.runs()):
            self._add(record if number is None else replace(record, replaces=number))

    def runs(self) -> list[StoredRun]:
        """Return all runs, by number. A record that cannot be read is left out, with a warning."""
        return self._runs_of(self._storage.get_all_trials(self._study_id, deepcopy=False))

    def forget(self) -> None:
        """Delete the job with all its runs."""
        with quiet_optuna():
            self._storage.delete_study(self._study_id)

    def _study_of(self, name: str) -> int:
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        try:
            return self._storage.create_new_study([StudyDirection.MINIMIZE], name)
        except DuplicatedStudyError:
            study_id = self._storage.get_study_id_from_name(name)
            has_trials = self._storage.get_n_trials(study_id) > 0  # counted first: ours is declared before its first
            if has_trials and _ATTRIBUTE not in self._storage.get_study_user_attrs(study_id):
                raise UsageError(
                    f"name is {name!r}, which is a study of another program in this storage; choose another name"
                ) from None
            return study_id

    def _runs_of(self, trials: Sequence[FrozenTrial]) -> list[StoredRun]:
        found: list[StoredRun] = []
        for trial in trials:
            if trial.state.name == "WAITING":  # to be done again: not a run yet
                continue
            try:
                record = _record_of(trial)
            except UsageError as error:
                _logger.warning("run %d of the job %r cannot be read: %s", trial.number, self._name, error)
                continue
            if record is not None:
                found.append(StoredRun(trial.number, record))
        replaced = {run.record.replaces for run in found}
        return [run for run in found if run.number not in replaced]

    def _new_number(self) -> int:
        """Return the number of a run that was killed and waits to be done again, or else a new one."""
        from optuna.trial import TrialState

        for trial in self._storage.get_all_trials(self._study_id, deepcopy=False, states=(TrialState.WAITING,)):
            if self._storage.set_trial_state_values(self._id_of(trial.number), TrialState.RUNNING):
                return trial.number
        return self._storage.get_trial_number_from_id(self._storage.create_new_trial(self._study_id))

    def _given(self, number: int, propose: Callable[[Sequence[JobRun], JobRun | None], JobRun]) -> JobRun:
        """Return the record of a run that begins, and keep it."""
        from optuna.distributions import IntDistribution

        trials = self._trials_at_turn(number)
        killed = next((_record_of(trial) for trial in trials if trial.number == number), None)  # a new one has none
        others = self._runs_of([trial for trial in trials if trial.number != number])
        record = propose([run.record for run in others], killed)
        distribution = IntDistribution(1, _MAX_BATCH_SIZE, log=True)
        self._storage.set_trial_param(self._id_of(number), _BATCH_SIZE, float(record.batch_size), distribution)
        self.update(number, record)
        return record

    def _trials_at_turn(self, number: int) -> list[FrozenTrial]:
        """Return all trials, once each that began before has its batch size."""
        waiting, until = math.inf, 0.0
        while True:
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            begun = (trial for trial in trials if trial.number < number and trial.state.name == "RUNNING")
            ahead = sum(_ATTRIBUTE not in trial.user_attrs for trial in begun)  # a record is written last
            if not ahead:
                return trials
            if ahead < waiting:
                waiting, until = ahead, time.monotonic() + _TURN_SECONDS
            if time.monotonic() > until:
                _logger.warning("a run that began before has no batch size yet, and is not waited for any longer")
                return trials
            time.sleep(ahead * _TURN_POLL_SECONDS)  # those behind leave the database to those whose turn it is

    def _add(self, record: JobRun) -> None:
        """Add a run that has ended under a new number."""
        import optuna

        distribution = optuna.distributions.IntDistribution(1, _MAX_BATCH_SIZE, log=True)
        state = optuna.trial.TrialState[_state_name(record)]
        trial = optuna.trial.create_trial(
            state=state,
            value=record.last.cost if state.name == "COMPLETE" else None,
            params={_BATCH_SIZE: record.batch_size},
            distributions={_BATCH_SIZE: distribution},
            user_attrs={_ATTRIBUTE: record_to_text(record)},
        )
        self._storage.create_new_trial(self._study_id, trial)

    def _set_state(self, number: int, state: str, cost: float | None = None) -> None:
        from optuna.trial import TrialState

        values = [cost] if state == "COMPLETE" and cost is not None else None
        self._storage.set_trial_state_values(self._id_of(number), TrialState[state], values)

    def _id_of(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def _trial(self, number: int) -> FrozenTrial:
        return self._storage.get_trial(self._id_of(number))


def job_names(storage: str) -> list[str]:
    """Return the names of the jobs in a storage, in alphabetical order.

    Raises:
        UsageError: The database is of a newer version.
        Exception: It cannot be reached.
    """
    with quiet_optuna():
        opened = patiently(lambda: open_storage(storage))
        return sorted(study.study_name for study in opened.get_all_studies() if _ATTRIBUTE in study.user_attrs)


def _record_of(trial: FrozenTrial) -> JobRun | None:
    """Return the record of a run; None if it has none yet. A run that was killed has failed."""
    text = trial.user_attrs.get(_ATTRIBUTE)
    if text is None:
        return None
    record = record_from_text(str(text))
    if trial.state.is_finished() and record.outcome == "running":
        return ended(record, "failed", "its process was killed, or lost the database")
    return record


def _is_retried(trial: FrozenTrial) -> bool:
    """Return whether a run that was killed is to be done again: not one that had reached its target before."""
    record = _record_of(trial)
    return record is None or record.outcome == "failed"


def _state_name(record: JobRun) -> str:
    if record.outcome == "reached":
        return "COMPLETE" if record.last.cost is not None else "PRUNED"
    return "PRUNED" if record.outcome in {"stopped", "measured"} else "FAIL"
