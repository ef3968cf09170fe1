"""``optimizer.state`` of an optimizer whose states are in the parameter store."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial, wraps
from typing import Any, NoReturn

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop_records import LoopRecords
from openwafer.training.frontends.loop.parameters import Backing, HeldBackings, StoredTensor, Values
from openwafer.training.frontends.loop.values import Aliases, are_same_bits
from openwafer.training.stream.link.optimizer_states import (
    give_states,
    state_of,
    take_states,
)
from openwafer.training.stream.link.updates import Updater


def _then_stored(method: Callable[..., Any]) -> Any:
    @wraps(method)
    def change(self: "StoredState", *args: Any, **kwargs: Any) -> Any:
        out = method(self, *args, **kwargs)
        self.store()
        return out

    return change


class StoredState(dict[str, Any]):
    """The state of one parameter: what is put into it goes to the store.

    Args:
        entries: tensors that read the store, and numbers.
        write: takes the state after a change; without it, this is a dict like others.
    """

    def __init__(
        self,
        entries: Mapping[str, Any] | None = None,
        write: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(entries or {})
        self._write = write

    def __reduce_ex__(self, _protocol: object) -> Any:
        return dict, (dict(self),)

    def store(self) -> None:
        """Write what the state is now, and read it from the store from now on."""
        if self._write is not None:
            dict.update(self, self._write(dict(self)))

    __setitem__ = _then_stored(dict.__setitem__)
    __delitem__ = _then_stored(dict.__delitem__)
    __ior__ = _then_stored(dict.__ior__)
    pop = _then_stored(dict.pop)
    popitem = _then_stored(dict.popitem)
    clear = _then_stored(dict.clear)
    update = _then_stored(dict.update)
    setdefault = _then_stored(dict.setdefault)


class StoredStates(MutableMapping[Any, Any]):
    """Parameters with their states; what is no parameter of the optimizer is kept beside.

    Args:
        updater: counts updates.
        records: have the states.
        parameters: those of the optimizer, by name.
    """

    def __init__(
        self, updater: Updater, records: LoopRecords, parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self.others: dict[Any, Any] = {}
        self._updater = updater
        self._records = records
        self._parameters = parameters
        self._name_of = {id(parameter): name for name, parameter in parameters.items()}
        self._held = HeldBackings[tuple[str, str]]()
        self._aliases = Aliases[tuple[str, str]]()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise error(
            "streamed-states-copied",
            "the states of this optimizer are in the parameter store, which cannot be copied or "
            "pickled with it",
            help="copy or save optimizer.state_dict()",
        )

    # A mapping of parameters.

    def __getitem__(self, key: Any) -> Any:
        name = self._name_of.get(id(key))
        if name is None:
            return self.others.setdefault(key, {})
        return StoredState(self._entries(name, self._read(name)), partial(self._write, name))

    def __setitem__(self, key: Any, state: Any) -> None:
        name = self._name_of.get(id(key))
        if name is None:
            self.others[key] = state
        else:
            self._write(name, state)

    def __delitem__(self, key: Any) -> None:
        name = self._name_of.get(id(key))
        if name is None:
            del self.others[key]
        else:
            self._write(name, {})

    def __contains__(self, key: object) -> bool:
        name = self._name_of.get(id(key))
        return key in self.others if name is None else bool(self._read(name))

    def __iter__(self) -> Iterator[Any]:
        for name, parameter in self._parameters.items():
            if self._read(name):
                yield parameter
        yield from self.others

    def __len__(self) -> int:
        return sum(1 for _ in self)

    # States.

    def _read(self, name: str) -> dict[str, Any]:
        self._records.settle()
        return state_of(self._records, self._updater, self._records.record_of[name], name)

    def _entries(self, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: self._held.made((name, key), partial(self._backing, name, key, value)).whole()
            if isinstance(value, torch.Tensor)
            else value
            for key, value in state.items()
        }

    def _backing(self, name: str, key: str, like: torch.Tensor) -> Backing:
        def read() -> torch.Tensor:
            alias = self._aliases.get((name, key))
            stored: torch.Tensor = self._read(name)[key] if alias is None else alias
            return stored

        def write(value: torch.Tensor) -> None:
            alias = self._aliases.get((name, key))
            if alias is not None:
                alias.copy_(value)
            self._take(name, {**self._read(name), key: value})

        def pointed() -> torch.Tensor:
            if self._aliases.get((name, key)) is None:
                self._aliases.add((name, key), read().clone())
            return read()

        values = Values(read, write, pointed=pointed)
        return Backing(f"the state {key!r} of {name!r}", like, like.device, values)

    def _write(self, name: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
        before = self._read(name)
        written = dict(state)
        for key, value in state.items():
            if isinstance(value, StoredTensor):
                written[key] = value.detach().clone()
        for key in before:
            value = state.get(key)
            backing = value.backing if isinstance(value, StoredTensor) else None
            if backing is None or self._held.get((name, key)) is not backing:
                self._held.leave((name, key))
                self._aliases.drop((name, key))
        self._take(name, written)
        return self._entries(name, self._read(name))

    def _take(self, name: str, state: Mapping[str, Any]) -> None:
        self._records.settle()
        take_states(self._records, self._updater, {name: state})
        self._records.note_counts((name,))

    def take(self) -> None:
        """States are about to be used: they are what the loop has made of memory that it holds."""
        for (name, key), alias in self._aliases:
            state = self._read(name)
            if not are_same_bits(state[key], alias):
                self._take(name, {**state, key: alias})
        self._aliases.release()

    def give(self) -> None:
        """States are updated, and so is the memory of theirs that the loop holds."""
        for (name, key), alias in self._aliases:
            alias.copy_(self._read(name)[key])

    def take_all(self, states: Mapping[Any, Any]) -> None:
        """Take the states of all parameters from a mapping; those that it lacks begin anew."""
        self._records.settle()
        counts = self._updater.counts.num_updates
        found = {name: states.get(parameter, {}) for name, parameter in self._parameters.items()}
        begun = {name: state for name, state in found.items() if state or counts.get(name)}
        for name, key in [*self._held, *(held for held, _ in self._aliases)]:
            if name in begun:
                self._held.leave((name, key))
                self._aliases.drop((name, key))
        take_states(self._records, self._updater, begun)
        self._records.note_counts(begun)
        self.others = {key: state for key, state in states.items() if id(key) not in self._name_of}

    def given(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names and copies of all states."""
        self._records.settle()
        for name, state in give_states(self._records, self._updater):
            if name in self._parameters:
                yield name, state

    def end(self, states: Mapping[Any, Any]) -> None:
        """The states are ordinary ones again, and so are those that somebody holds."""
        for (name, key), backing in self._held.items():
            backing.leave(states[self._parameters[name]][key])
