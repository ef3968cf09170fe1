"""Execution of steps whose weights and optimizer state stay on a device with memory of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from openwafer.training.store.layout import Part
from openwafer.training.store.record_access import Arrays, LentParts
from openwafer.training.store.update_rules.update_pass import AVERAGE
from openwafer.training.stream.execute.execution import ResidentExecution
from openwafer.training.stream.link.optimizer_states import STEP
from openwafer.training.stream.records import state_name


class DeviceResidentExecution(ResidentExecution):
    """Weights stay on the device, beside the optimizers' own state; see ``Execution``.

    The optimizers of the run step as in a plain loop, by torch's kernels for that device. The
    store gets weights and states when :meth:`flush` asks for them. Update rules that keep fp32
    masters in the store have no form on a device.
    """

    def _bind(self) -> None:
        self._is_store_behind = False
        self._averages: dict[str, torch.Tensor] = {}
        self._owners = {
            id(parameter): (optimizer, group)
            for optimizer in self.updater.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        with self.device.active():
            for record, layout in self.store.layouts.items():
                with self.store.lent(record, layout.kept_parts, read_only=True) as loan:
                    for place in layout.parts[Part.WEIGHTS]:
                        self._bring(place.spec.name, loan)

    def _bring(self, name: str, loan: LentParts) -> None:
        """Make the parameter's tensors on the device; a state begins with the first update."""
        parameter = self._parameters[name]
        parameter.data = self._on_device(loan.tensor(name, Part.WEIGHTS))
        states_kept = self._states_of(name)
        if AVERAGE in states_kept:
            states_kept.remove(AVERAGE)
            self._bring_average(name, loan)
        count = self.updater.counts.num_updates.get(name, 0)
        if not count:
            if id(parameter) in self._owners:
                # Weights that went back begin with no state again.
                self._owners[id(parameter)][0].state.pop(parameter, None)
            return
        optimizer, group = self._owners[id(parameter)]
        kept = {state: loan.tensor(state_name(state, name), Part.STATES) for state in states_kept}
        # torch counts on the device for its fused kernels and ASGD, and in host memory otherwise.
        counts_on_device = group.get("fused") or isinstance(optimizer, torch.optim.ASGD)
        states = {
            state: self._on_device(array) if array.ndim or counts_on_device else array.clone()
            for state, array in kept.items()
        }
        if STEP not in states:
            where = parameter.device if counts_on_device else torch.device("cpu")
            states[STEP] = torch.tensor(float(count), dtype=torch.float32, device=where)
        optimizer.state[parameter] = states

    def _bring_average(self, name: str, loan: LentParts) -> None:
        """Averages on the device move in every step, so none of its moves may be missing."""
        counts = self.updater.counts
        average = self._on_device(loan.tensor(state_name(AVERAGE, name), Part.STATES))
        averaging = self.updater.averaging(name, counts.steps_applied)
        assert averaging is not None
        averaging.catch_up(average, self._parameters[name].detach())
        self._is_store_behind |= averaging.num_missed > 0
        counts.num_averaged[name] = counts.steps_applied
        self._averages[name] = average

    def _on_device(self, on_host: torch.Tensor) -> torch.Tensor:
        device = self.device
        on_device = torch.empty_like(on_host, device=device.torch_device)
        transfer = device.upload(on_device, on_host, device.submitted())
        transfer.wait()
        transfer.wait_until_read()
        return on_device

    def _states_of(self, name: str) -> list[str]:
        """What the store keeps for a parameter beside its weights."""
        parameter = self._parameters[name]
        specs = self.updater.specs(name, tuple(parameter.shape), parameter.dtype)
        return [spec.name for spec in specs]

    def complete_step(self, coefficient: float) -> None:
        """See ``Execution``."""
        gradients = self._gradients()
        with self.device.active(), torch.no_grad():
            if coefficient != 1.0:
                for gradient in gradients.values():
                    gradient.mul_(coefficient)
            for optimizer in self.updater.optimizers:
                optimizer.step()
            for name in filter(self.updater.trains, gradients):
                count = self.updater.counts.num_updates.get(name, 0)
                self.updater.counts.num_updates[name] = count + 1
            self._move_averages()
        self.updater.counts.steps_applied += 1
        self.discard_gradients()
        self._is_store_behind = True
        if self._step_hooks.is_any_due(self.updater.counts.steps_applied):
            # A flush ends the step for whoever commits it; the hooks come before that.
            self._copy_to_store()
            self._call_hooks()

    @contextmanager
    def _lent(self, record: str) -> Iterator[Arrays]:
        layout = self.store.layouts[record]
        with self.store.lent(record, layout.kept_parts) as loan:
            yield loan
            with self.device.active():
                for place in layout.parts[Part.WEIGHTS]:
                    self._bring(place.spec.name, loan)

    def _move_averages(self) -> None:
        counts = self.updater.counts
        for name, average in self._averages.items():
            averaging = self.updater.averaging(name, counts.steps_applied)
            assert averaging is not None
            averaging.move(average, self._parameters[name].detach())
            counts.num_averaged[name] = counts.steps_applied + 1

    def flush(self) -> None:
        """See ``Execution``. Copies weights and states into the store."""
        if self._is_store_behind:
            self._copy_to_store()
            self._is_store_behind = False
            self.on_updates_applied()

    def _copy_to_store(self) -> None:
        after = self.device.submitted()
        for record, layout in self.store.layouts.items():
            with self.store.lent(record, layout.kept_parts) as loan:
                for place in layout.parts[Part.WEIGHTS]:
                    for held, on_host in self._copies(place.spec.name, loan):
                        if held.device.type == "cpu":
                            on_host.copy_(held)
                        else:
                            self.device.download(held, on_host, after).wait()

    def _copies(self, name: str, loan: LentParts) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The parameter's tensors on the device, each with its place in the store."""
        parameter = self._parameters[name]
        yield parameter.detach(), loan.tensor(name, Part.WEIGHTS)
        held: dict[str, torch.Tensor] = {}
        if name in self._averages:
            held[AVERAGE] = self._averages[name]
        if self.updater.counts.num_updates.get(name):
            held |= self._owners[id(parameter)][0].state[parameter]
        for state in self._states_of(name):
            if state in held:
                yield held[state], loan.tensor(state_name(state, name), Part.STATES)


def foreach_bytes(optimizers: Sequence[Optimizer]) -> int:
    """Device bytes that the optimizers' steps take for themselves.

    The foreach form, torch's choice on a GPU where nothing else is asked for, makes one more
    tensor for every parameter.
    """
    return sum(
        parameter.nbytes
        for optimizer in optimizers
        for group in optimizer.param_groups
        if group.get("foreach", False) is not False and not group.get("fused")
        for parameter in group["params"]
    )
