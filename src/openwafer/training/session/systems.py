"""The systems of a run: one leads, and all compute their share of each step.

All of them run the same steps: the leader tells each one when it begins. The micro-batches of a
step are dealt in blocks of neighbours, in the order of the ranks, so that gradients can be summed
in the order of a loop on one device. At the turn from forward to backward the losses of all
micro-batches are known on all systems, which so refuse a step together.
"""

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NamedTuple, Self

import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.chunks import chunk_bytes_at
from openwafer.training.collectives.group import FIRST_RANK, GOES_ON, Group, Rank
from openwafer.training.collectives.joining import Meeting, launched_rank, meet_launched
from openwafer.training.collectives.network_rates import NetworkRates, measure_network
from openwafer.training.collectives.ordered_sums import Reduction
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_state import StoreSet
from openwafer.training.step import GradientReport, NotFiniteError
from openwafer.training.stream.execute.pass_watch import StepContract
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.replicas.ownership import HostMemory, hosts_of
from openwafer.training.stream.replicas.replica_link import Digests, Replicas
from openwafer.training.systems.control import Control
from openwafer.training.systems.owner import Owner, Owners

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_PASSED_ON: Final = 5.0
"""A scheduler signals a launcher and its processes, and the launcher signals these once more."""
GROUPS: Final = ("control", "commits")
STREAMS: Final = ("weights", "gradients")
EXPERTS: Final = "experts"
STEP: Final = "the signal STEP"
# The launcher's number counts, which each process may know by itself.
NOT_COMPARED = frozenset({"systems"})
MAX_SHOWN = 8


class Interruption:
    """While the `with` block lasts, SIGINT and SIGTERM set a flag; a second one raises.

    In a process that a launcher has started, what comes in the first seconds is the first signal
    once more. Blocks may lie in each other. Outside the main thread, where Python lets nobody
    handle signals, it does nothing.

    Attributes:
        number: of the signal that came, here or on another system; 0 before.
        has_ended_run: whether the run ended early by it.
    """

    def __init__(self) -> None:
        self.number = 0
        self.has_ended_run = False
        self._came: float | None = None
        self._depth = 0
        self._earlier: dict[signal.Signals, object] = {}

    @property
    def signal_name(self) -> str:
        """Name of the signal that came, such as SIGINT; empty before."""
        return signal.Signals(self.number).name if self.number else ""

    def note(self, number: int) -> None:
        """Another system has got this signal, or none, which is 0."""
        self.number = self.number or number

    def end_now(self) -> None:
        """Raise KeyboardInterrupt if a signal has come, where no step is under way."""
        if self.number:
            self.has_ended_run = True
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if self._depth == 0:
            self.number, self.has_ended_run, self._came = 0, False, None
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            self._earlier = {each: signal.signal(each, self._receive) for each in _SIGNALS}
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            for each, earlier in self._earlier.items():
                signal.signal(each, earlier)  # type: ignore[arg-type]
            self._earlier = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._came is None:
            self._came = now
            self.note(number)
        elif launched_rank() is None or now - self._came > SECONDS_PASSED_ON:
            self.end_now()


@dataclass(frozen=True)
class MeasuredSystems:
    """What systems have found out of themselves.

    Attributes:
        network: how fast weights and gradients pass.
        hosts: what the host of each has.
    """

    network: NetworkRates
    hosts: tuple[HostMemory, ...]


@dataclass(frozen=True)
class BegunRun:
    """What a system needs to know of a run that begins or goes on.

    Attributes:
        config: of the run.
        data_folder: where the tokens are.
        data: fingerprint of the batches.
        contract: what all of them go by.
        counts: of the updates applied before.
        vocab_size: of the tokenizer.
        folder: of the run, where each system's own disk has its store.
        stores: what the stores commit as; ``None`` where they do not.
        store_step: at which the stores are opened; ``None`` makes new ones.
        keeps_old: whether stores that are there are set aside, and not deleted.
    """

    config: RunConfig
    data_folder: Path
    data: str
    contract: StepContract
    counts: UpdateCounts
    vocab_size: int
    folder: Path
    stores: StoreSet | None
    store_step: int | None
    keeps_old: bool


@dataclass(frozen=True)
class BegunStep:
    """A step that begins.

    Attributes:
        step: its number.
        loss_scale: multiplies losses.
        checks_weights: whether systems compare the weights that they compute with.
    """

    step: int
    loss_scale: float
    checks_weights: bool = False


class Measure:
    """All systems are to find out how fast their network is."""


class MicroBatchReport(NamedTuple):
    """What all systems know of a micro-batch at the turn to backward.

    Attributes:
        loss: the mean over its targets.
        num_targets: that it has.
        num_tokens: that it has, padding left out.
    """

    loss: float
    num_targets: int
    num_tokens: int


class SystemStep(NamedTuple):
    """What a step cost a system; see :class:`~openwafer.training.metrics.StepMetrics`."""

    seconds: float
    waiting_seconds: float
    received_bytes: int


class Systems:
    """The systems of a run as one of them sees them.

    Args:
        meeting: where they meet.
        network: how fast weights and gradients pass, the same on all of them; ``None`` measures it.

    Attributes:
        meeting: where they met.
        rank, size: this system's index, and how many there are.
        replicas: how weights and gradients pass, which are added in the order of a loop.
        control: what the leader tells.
        last_step: what the last step cost each of them; empty before.
        interruption: the signal that this system has got, or any of them before a step ended.

    Raises:
        OpenwaferError: ``rank-missing``.
    """

    def __init__(self, meeting: Meeting, network: NetworkRates | None = None) -> None:
        meeting = meeting.timed_by_first()
        self._network = network
        self.rank, self.size = meeting.rank, meeting.size
        controlling, self._commits = meeting.groups(GROUPS)
        # All are there by now: who does not come to a later meeting is silent.
        self.meeting = meeting = replace(meeting, start_seconds=0.0)
        self.control = Control(controlling)
        # From the meeting on, the others listen until the run ends.
        self.control.presence.is_told = True
        weights, gradients = meeting.two_way_groups(STREAMS)
        self.replicas = Replicas(weights, gradients)
        self._experts: Group | None = None
        self.last_step: list[SystemStep] = []
        self.interruption = Interruption()

    @classmethod
    def launched(cls, timeout_seconds: float = 600.0) -> "Systems":
        """Those that a launcher such as torchrun has started, each of which calls this.

        Args:
            timeout_seconds: after which one that says nothing counts as lost. That of the leader
                counts once they have met.

        Raises:
            OpenwaferError: ``rank-missing``, ``systems-missing`` where no launcher is.
        """
        if launched_rank() is None:
            raise error(
                "systems-missing",
                "no launcher has said which of the systems this process is",
                help="start the program by torchrun",
            )
        return cls(meet_launched(timeout_seconds))

    @property
    def is_leader(self) -> bool:
        """Whether this system has the store."""
        return self.rank == FIRST_RANK

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All of them."""
        return self.control.group.ranks

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Context of the leader's work, after which the others end, if they listen."""
        with self.interruption:
            try:
                yield
            finally:
                if self.control.presence.is_told:
                    self.control.presence.is_told = False
                    # Who is lost by now has nothing left to do.
                    with suppress(OpenwaferError):
                        self.control.tell_all(self.interruption.has_ended_run, "the signal END")

    def follow(self) -> None:
        """Do what the leader asks until the run ends."""
        self.interruption.has_ended_run = self.control.hear("what to do next")

    def part(self, name: str, members: Sequence[int], like: Group) -> Group:
        """Connect some of the systems; all of these call this.

        Args:
            name: another one for other members.
            members: their ranks, rising, this one's among them.
            like: a group of all systems, which counts what passes; it is the one where all are
                members.
        """
        if len(members) == self.size:
            return like
        [group] = self.meeting.groups([name], members)
        group.traffic = like.traffic
        return group

    def replicas_by(self, reduction: Reduction, contract: StepContract) -> Replicas:
        """How weights and gradients pass where these are added in that way; all of them call this.

        Args:
            reduction: see :class:`Replicas`.
            contract: what they go by.
        """
        ownership = contract.ownership
        has_owners = bool(contract.shares)
        reached = Owners(self.control, ownership.owners) if has_owners and self.is_leader else None
        if has_owners and contract.stages is None and ownership.staying:
            (self._experts,) = self.meeting.groups((EXPERTS,))
        return replace(
            self.replicas,
            reduction=reduction,
            ownership=ownership,
            over=None if reached is None else reached.over,
            read_weights=None if reached is None else reached.read_weights,
            experts=self._experts,
        )

    def ask(self, content: object) -> None:
        """Tell the others what an owner of records is to do; on the leader, between two steps."""
        self.control.ask_all(content, "the signal ASK")

    def agree(self, step: int) -> None:
        """Return when all systems are ready to commit a step.

        Raises:
            OpenwaferError: ``rank-lost``, ``ranks-differ``.
        """
        found = self._commits.gather(torch.tensor([step]), f"its commit of step {step}")
        steps = [int(one.item()) for one in found]
        if len(set(steps)) > 1:
            raise error(
                "ranks-differ",
                f"systems are about to commit different steps: {steps}, in the order of ranks",
                help=f"report this; {GOES_ON}",
            )

    def measure(self) -> MeasuredSystems:
        """What the systems are able to; on the leader, which has the others help."""
        with self.control.doing(Measure(), "the signal MEASURE"):
            return self.share_measurement()

    def share_measurement(self) -> MeasuredSystems:
        """The same; all of them call this.

        From here on weights and gradients pass in chunks of a length that fits the network.
        """
        passing, group = self.replicas, self.control.group
        network = self._network
        if network is None:
            network = measure_network(passing.weights, passing.gradients, group)
        self.replicas = replace(self.replicas, chunk_bytes=chunk_bytes_at(network.weights))
        return MeasuredSystems(network, hosts_of(group))

    def begin(self, run: object) -> None:
        """Tell the others of a run."""
        self.control.ask_all(run, "the signal BEGIN")

    @contextmanager
    def step(self, begun: BegunStep) -> Iterator[None]:
        """Context of a step on all systems, all of which meet what is not finite."""
        with self.control.doing(begun, STEP, (NotFiniteError,)), self.measured(begun):
            yield

    def doing(self, content: object) -> AbstractContextManager[None]:
        """Context in which the others do, between two steps, what they are told."""
        return self.control.doing(content, STEP)

    @contextmanager
    def measured(self, begun: BegunStep) -> Iterator[None]:
        """Context of a step, after which all systems know what it cost each.

        Raises:
            OpenwaferError: ``ranks-differ`` where the weights of one are not those that it was
                sent.
        """
        self.replicas.digests.is_wanted = begun.checks_weights
        start, before = time.perf_counter(), self._account()
        yield
        seconds, after = time.perf_counter() - start, self._account()
        spent = [b - a for a, b in zip(before, after, strict=True)]
        own = torch.tensor([seconds, *spent, self.interruption.number], dtype=torch.float64)
        tables = self.control.group.gather(own, "what the step cost it")
        self.interruption.note(max(int(table[-1]) for table in tables))
        if begun.checks_weights:
            self._compare(begun.step)
        self.last_step = [
            SystemStep(seconds, waited, int(received))
            for seconds, waited, received, _ in map(torch.Tensor.tolist, tables)
        ]

    def _compare(self, step: int) -> None:
        tables = self.control.gather(self.replicas.digests, "digests of its weights")
        sent: dict[str, tuple[str, int]] = {}
        for rank, table in zip(self.ranks, tables, strict=True):
            assert isinstance(table, Digests)
            here = f"{rank} ({table.where})" if table.where else str(rank)
            for what, digest in table.last.items():
                sender, expected = sent.setdefault(what, (here, digest))
                if digest != expected:
                    raise error(
                        "ranks-differ",
                        f"in step {step} {here} computed with other {what} than {sender} sent: "
                        f"their digests are {digest:x} and {expected:x}",
                        help=f"test the memory and the network of host {rank.host!r}, and go on "
                        "from a checkpoint before that step, without that host",
                    )

    def _account(self) -> tuple[float, float]:
        """Seconds in which the compute thread has waited, and bytes that have come, so far."""
        rows = [] if self._experts is None else [self._experts.traffic]
        weights = self.replicas.weights.traffic
        passing = (weights, self.replicas.gradients.traffic, *rows)
        waiting = (self.control.group.traffic, weights, self.replicas.waits, *rows)
        return (
            sum(one.waited_seconds for one in waiting),
            float(sum(one.received_bytes for one in passing)),
        )

    def block(self, num_micro_batches: int) -> range:
        """Indices of this system's micro-batches.

        Raises:
            OpenwaferError: ``systems-idle`` where some system would have none.
        """
        return self.blocks(num_micro_batches)[self.rank]

    def blocks(self, num_micro_batches: int) -> list[range]:
        """Those of all systems, which differ by one at most; see :meth:`block`."""
        return blocks_of(num_micro_batches, self.size)

    def exchange(
        self, own: Sequence[MicroBatchReport], num_micro_batches: int
    ) -> list[MicroBatchReport]:
        """The reports of all micro-batches, given those of this system's.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        blocks = self.blocks(num_micro_batches)
        table = torch.zeros(max(map(len, blocks)), len(MicroBatchReport._fields)).double()
        table[: len(own)] = torch.tensor(own, dtype=torch.float64)
        tables = self.control.group.gather(table, "its losses")
        return [
            MicroBatchReport(loss, int(num_targets), int(num_tokens))
            for block, found in zip(blocks, tables, strict=True)
            for loss, num_targets, num_tokens in found[: len(block)].tolist()
        ]


def blocks_of(num_micro_batches: int, num_systems: int) -> list[range]:
    """Blocks of neighbouring micro-batches, one for each system; see :meth:`Systems.block`."""
    if num_micro_batches < num_systems:
        raise error(
            "systems-idle",
            f"a step has {num_micro_batches} micro-batch{'es' * (num_micro_batches != 1)}, and "
            f"there are {num_systems} systems",
            help=f"set batch.micro_batches to {num_systems} or more, on one system too where the "
            "bits are to be the same, or use fewer systems",
        )
    return even_blocks(num_micro_batches, num_systems)


def even_blocks(num: int, num_blocks: int) -> list[range]:
    """Blocks of neighbours that differ by one at most; some are empty if there are too few."""
    ends = [index * num // num_blocks for index in range(num_blocks + 1)]
    # The first ones have no more than the others, since sums begin there.
    return [range(start, end) for start, end in pairwise(ends)]


def require_work_for_all(config: RunConfig) -> None:
    """Refuse a run some step of which has fewer micro-batches than there are systems.

    Raises:
        OpenwaferError: ``systems-idle``.
    """
    blocks_of(config.batch.fewest_micro_batches, config.systems)


def require_alone(config: RunConfig) -> None:
    """Raise ``systems-missing`` for a run of several systems in a process that has met no other."""
    if config.systems > 1:
        raise error(
            "systems-missing",
            f"systems is {config.systems}, and this process is alone",
            help="start all of them: openwafer train CONFIG --systems "
            f"{config.systems}, or torchrun; to go on with one, set systems to 1",
        )


def require_same_settings(systems: Systems, own: Mapping[str, str]) -> None:
    """Refuse settings that differ by system; all of them call this, before there is a run.

    Args:
        systems: those of the run.
        own: of this system, by their keys.

    Raises:
        OpenwaferError: ``systems-config``, on all of them.
    """
    told = [
        dict(one)
        for one in systems.control.gather(dict(own), "its config")
        if isinstance(one, dict)
    ]
    differing = {
        key: rank
        for rank, one in zip(systems.ranks, told, strict=True)
        for key in (told[0].keys() | one.keys()) - NOT_COMPARED
        if told[0].get(key) != one.get(key)
    }
    if differing:
        notes = [_note(key, rank, told) for key, rank in sorted(differing.items())]
        ranks = ", ".join(sorted({str(rank) for rank in differing.values()}))
        raise error(
            "systems-config",
            f"{ranks} was started with other settings than {systems.ranks[0]}",
            notes=tuple(notes[:MAX_SHOWN]),
            help="start all of them with the same config and the same --set",
        )


def _note(key: str, rank: Rank, told: Sequence[Mapping[str, str]]) -> str:
    first, other = (one.get(key, "not set") for one in (told[0], told[rank.index]))
    return f"{key} is {first} on rank 0, and {other} on rank {rank.index}"


def gathered_reports(systems: Systems, own: GradientReport) -> list[GradientReport]:
    """Those of all systems; each of them calls this when a pass is over."""
    found = systems.control.gather(own, "the norms of its gradients")
    return [report for report in found if isinstance(report, GradientReport)]


def gathered_counts(systems: Systems, own: UpdateCounts) -> UpdateCounts:
    """Counts of the parameters of all systems; the leader calls this between two steps."""
    others = []
    for found in systems.control.answers(
        Owner.told_counts, "how often it has updated its parameters"
    ):
        assert isinstance(found, UpdateCounts)
        others.append(found)
    return own.joined(others)
