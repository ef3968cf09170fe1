"""Keeps a run safe: a commit every step on the disk tier, portable checkpoints when due."""

from dataclasses import replace
from pathlib import Path

from openwafer.training.session.opened_run import OpenedRun
from openwafer.training.session.owned_records import gathered_counts
from openwafer.training.session.run_state import RunState
from openwafer.training.store import list_checkpoints
from openwafer.training.store.checkpoint import keep_last, save_checkpoint
from openwafer.training.systems.owner import CommitStep, Flush


class Saver:
    """Saves the steps of an open run.

    Updates of a step may still be applied while the next one runs, so a step's state is noted
    when the step ends and committed when the execution says that its updates are in the store.
    """

    def __init__(self, run: OpenedRun) -> None:
        self._run = run
        self._store = run.execution.store
        # The systems, where others than this one have records.
        self._owners = run.systems if run.shares_store else None
        self._state = run.state()
        self._last_checkpoint = -1
        run.execution.on_updates_applied = self._updates_applied

    @property
    def commits(self) -> bool:
        """Whether there is a disk tier, which is committed every step."""
        return self._run.planned.uses_disk

    def begin(self) -> None:
        """Make the state the run begins with the first committed one."""
        self._state = self._run.state()
        if self.commits and self._store.step != self._state.steps_done:
            self._commit(is_asked_for=True)

    def note_step(self) -> None:
        """Take the run's state at the end of a step, before its updates are applied."""
        self._state = self._run.state()

    def note_no_updates(self) -> None:
        """The step noted last applies nothing, so that the store is up to date already."""
        self._commit()

    def checkpoint(self) -> Path:
        """Write a checkpoint of the last step and delete those that are too many."""
        self._flush()
        path = self._write()
        keep_last(self._run.folder.checkpoints, self._run.config.checkpoint.keep)
        return path

    def rescue(self) -> Path | None:
        """Save the last step of a run that goes wrong; older checkpoints all stay.

        Returns:
            The checkpoint, or ``None`` where the store's commit is enough.
        """
        self.settle()
        return None if self.commits else self._write()

    def finish(self, *, is_complete: bool) -> Path | None:
        """Make the last step durable; returns its checkpoint where there is to be one."""
        self.settle()
        # Stores of several systems are of use to as many alone.
        may_move = self._owners is not None and not is_complete
        is_wanted = may_move or (is_complete and self._run.config.checkpoint.at_end)
        if self.commits and not is_wanted:
            return None
        return self.checkpoint()

    def settle(self) -> None:
        """Apply the updates of the last step, and wait until its commit is on disk."""
        self._flush()
        if self.commits:
            self._store.commit_wait()

    def _flush(self) -> None:
        """Bring the stores of all systems up to date."""
        if self._owners is not None:
            self._owners.ask(Flush())
        self._run.execution.flush()

    def _write(self) -> Path:
        state = self._complete_state()
        if self._owners is not None:
            counts = gathered_counts(self._owners, state.counts)
            state = replace(state, counts=counts, stores=None)
        if self._last_checkpoint == state.steps_done:
            return list_checkpoints(self._run.folder.checkpoints)[-1]
        path = save_checkpoint(
            self._run.execution.records,
            self._run.folder.checkpoints,
            state.steps_done,
            state.to_json(),
            num_updates=state.counts.num_updates,
        )
        self._last_checkpoint = state.steps_done
        return path

    def _updates_applied(self) -> None:
        counts = self._run.execution.updater.counts
        self._commit(is_asked_for=self._run.execution.is_hook_due(counts.steps_applied))

    def _commit(self, *, is_asked_for: bool = False) -> None:
        """Commit, as all owners do by themselves unless they have to be asked for it."""
        if self.commits:
            state = self._complete_state()
            if is_asked_for and self._owners is not None:
                self._owners.ask(CommitStep(state.steps_done))
            self._store.commit_begin(state.steps_done, state.to_json())

    def _complete_state(self) -> RunState:
        # The counts move when the updates do, which is after the state was noted.
        return replace(self._state, counts=self._run.execution.updater.counts.of_wholes())
