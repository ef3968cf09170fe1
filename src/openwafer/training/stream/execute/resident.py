"""Executions whose weights stay on the device: in the store's own memory, or beside the store."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.training.store.layout import Part, state_name
from openwafer.training.store.parameter_store import Loan, ParameterStore
from openwafer.training.store.record_access import Arrays, LentParts
from openwafer.training.store.update_rules.own_step import STEP, make_first_states
from openwafer.training.store.update_rules.update_pass import AVERAGE
from openwafer.training.stream.device.device import ALWAYS_METERED, brought
from openwafer.training.stream.execute.arriving_gradients import GradientWatchers, MicroBatchWatcher
from openwafer.training.stream.execute.execution import (
    Execution,
    Root,
    Seed,
    StepContext,
    Watcher,
)
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.layers import leaves_out
from openwafer.training.stream.link.store_link import LinkTraffic
from openwafer.training.stream.link.updates import StepRules


class ResidentExecution(Execution):
    """Weights stay on the device: the parameters are the store's own memory.

    Needs a device whose memory is the host's; the plain loop in all but the home of its tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        store: ParameterStore,
        context: StepContext,
    ) -> None:
        super().__init__(store, context)
        self._traffic = LinkTraffic()
        self._watchers: list[Watcher] = []
        self._parameters = dict(model.named_parameters())
        self._micro_batch_watchers = GradientWatchers(self._parameters)
        self._record_of: dict[str, str] = {}
        self._loans: dict[str, Loan] = {}
        self._num_evaluations = 0
        self._is_always_watched = leaves_out(model)
        self._bind()

    def _bind(self) -> None:
        for record, layout in self.store.layouts.items():
            loan = self._loans[record] = self.store.borrow(record, layout.kept_parts)
            loan.wait()
            places = [(p.spec.name, part) for part in layout.kept_parts for p in layout.parts[part]]
            self.device.hold(loan.tensor(name, part) for name, part in places)
            for place in layout.parts[Part.WEIGHTS]:
                name = place.spec.name
                self._record_of[name] = record
                self._parameters[name].data = loan.tensor(name, Part.WEIGHTS)

    @property
    def traffic(self) -> LinkTraffic:
        return self._traffic

    def watch_gradients(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def watch_micro_batches(self, watcher: MicroBatchWatcher) -> None:
        self._micro_batch_watchers.add(watcher)

    def run(self, forwards: Sequence[Forward], root: Root, seed: Seed | None) -> list[float]:
        losses = []
        is_watched = self._is_always_watched or self.recorder.trace is not None
        with self.device.active(is_watched=is_watched):
            for index, forward in enumerate(forwards):
                self._micro_batch_watchers.micro_batch = index
                if seed is not None:
                    seed(index)
                with self._autocast():
                    loss = forward()
                torch.autograd.backward(root([loss]))
                losses.append(loss.item())
        for watcher in self._watchers:
            watcher(self._gradients())
        return losses

    def _gradients(self) -> dict[str, torch.Tensor]:
        return {
            name: parameter.grad
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        }

    def complete_by(self, rules: StepRules) -> None:
        by_record: dict[str, dict[str, torch.Tensor]] = {}
        for name, gradient in self._gradients().items():
            by_record.setdefault(self._record_of[name], {})[name] = gradient
        with torch.no_grad(), self.device.host_section():
            for record, gradients in by_record.items():
                self.updater.apply(self._loans[record], gradients, rules)
        self.updater.counts.steps_applied += 1
        by_record.clear()
        self.discard_gradients()
        self._call_hooks(self.store.layouts)
        self.on_updates_applied()

    @contextmanager
    def _lent(self, record: str) -> Iterator[Arrays]:
        yield self._loans[record]

    def discard_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def flush(self) -> None:
        """See :class:`Execution`. Every step is applied at once."""

    def evaluate(
        self, forwards: Sequence[Forward], *, may_repeat: bool = True
    ) -> list[torch.Tensor]:
        self._num_evaluations += 1
        is_new = self._num_evaluations <= ALWAYS_METERED
        with self.device.active(is_watched=is_new), torch.no_grad(), self._autocast():
            return [forward() for forward in forwards]

    def close(self) -> None:
        self._micro_batch_watchers.close()
        for loan in self._loans.values():
            loan.release()


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
        parameter.data = brought(self.device, loan.tensor(name, Part.WEIGHTS))
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
            state: brought(self.device, array) if array.ndim or counts_on_device else array.clone()
            for state, array in kept.items()
        }
        if STEP not in states:
            where = parameter.device if counts_on_device else torch.device("cpu")
            states[STEP] = torch.tensor(float(count), dtype=torch.float32, device=where)
        optimizer.state[parameter] = states

    def _bring_average(self, name: str, loan: LentParts) -> None:
        """Averages on the device move in every step, so none of its moves may be missing."""
        counts = self.updater.counts
        average = brought(self.device, loan.tensor(state_name(AVERAGE, name), Part.STATES))
        averaging = self.updater.averaging(name, counts.steps_applied)
        assert averaging is not None
        averaging.catch_up(average, self._parameters[name].detach())
        self._is_store_behind |= averaging.num_missed > 0
        counts.num_averaged[name] = counts.steps_applied
        self._averages[name] = average

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
                make_first_states(optimizer)
                optimizer.step()
            for name in filter(self.updater.trains, gradients):
                count = self.updater.counts.num_updates.get(name, 0)
                self.updater.counts.num_updates[name] = count + 1
            self._move_averages()
        self.updater.counts.steps_applied += 1
        self.discard_gradients()
        self._is_store_behind = True
        if self.is_hook_due(self.updater.counts.steps_applied):
            # A flush ends the step for whoever commits it; the hooks come before that.
            self._copy_to_store()
            self._call_hooks(self.store.layouts)

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
