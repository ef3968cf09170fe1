"""What a system does that does not lead: the steps that it is told, with its share of the batch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.diagnostics import error
from openwafer.training.data import TokenDataset, prepare
from openwafer.training.data.dataset import find_dataset
from openwafer.training.session.allocator import keeping_freed_memory, return_large_blocks
from openwafer.training.session.building import build_hollow_model, plan_input, tokenizer_of
from openwafer.training.session.earlier_stores import EarlierStores
from openwafer.training.session.forward import forward_of
from openwafer.training.session.matmul_precision import multiplying
from openwafer.training.session.owned_records import OwnedRecords
from openwafer.training.session.pipelined.running import BegunStages, following_stages
from openwafer.training.session.seeding import seed_micro_batch
from openwafer.training.session.shared_stores import (
    FindRun,
    FindStores,
    tell_run,
    tell_stores,
)
from openwafer.training.session.step_root import StepRoot
from openwafer.training.session.systems import BegunRun, BegunStep, Measure, Systems
from openwafer.training.step import NotFiniteError
from openwafer.training.store import StoreOptions
from openwafer.training.stream.execute.execution import without_records
from openwafer.training.stream.plan.workload import autocast


def follow(systems: Systems) -> None:
    """Compute this system's share of a run's steps until the leader ends it.

    A signal that this system gets ends the run on all of them, after their step.

    Raises:
        OpenwaferError: ``rank-lost``, ``systems-data``, or whatever the model and the device meet.
    """
    return_large_blocks()
    with systems.interruption, closing(EarlierStores(systems)) as stores, ExitStack() as run:
        systems.control.answer = partial(_prepare, systems, stores, run)
        systems.follow()


def _prepare(systems: Systems, stores: EarlierStores, run: ExitStack, told: object) -> None:
    """Do what the leader tells before a run begins, and begin it."""
    match told:
        case Measure():
            systems.share_measurement()
        case FindRun():
            tell_run(systems, told)
        case FindStores():
            tell_stores(systems, told)
        case BegunStages() | BegunRun():
            run.enter_context(multiplying(told.config.matmul_precision))
            if isinstance(told, BegunStages):
                following = following_stages(systems, told)
            else:
                following = _following_steps(systems, told)
            systems.control.answer = run.enter_context(following)
        case _:
            stores.answer(told)


@contextmanager
def _following_steps(systems: Systems, begun: BegunRun) -> Iterator[Callable[[object], object]]:
    """Context of a run on this system; does what the leader tells."""
    with closing(_Follower(systems, begun)) as follower:
        yield follower.do


class _Follower:
    """The model of a run on a system that does not lead."""

    def __init__(self, systems: Systems, begun: BegunRun) -> None:
        self._systems = systems
        self._config = config = begun.config
        self._dataset = _find_data(begun)
        with TemporaryDirectory(prefix="openwafer-") as scratch:
            vocab_size = self._dataset.tokenizer.vocab_size
            self._model = build_hollow_model(config, vocab_size, Path(scratch))
        self._device = plan_input(config, StoreOptions()).make_device()
        casting = partial(autocast, self._device.torch_device, config.precision.autocast_dtype)
        self._owned: OwnedRecords | None = None
        if begun.shares:
            self._owned = OwnedRecords(systems, begun, self._model, self._device, casting)
            self._execution = self._owned.execution
        else:
            replicas = systems.replicas_by(config.reduction, {})
            self._execution = without_records(
                self._model, begun.contract.plan, self._device, casting, replicas
            )
        self._execution.executor.watch.hold_to(begun.contract)

    def do(self, told: object) -> object:
        """Do what the leader tells; returns what it is answered."""
        if not isinstance(told, BegunStep):
            assert self._owned is not None
            return self._owned.owner.answer(told)
        try:
            self._run(told)
        except NotFiniteError:
            # The leader has met it, too, and says what becomes of the run.
            if self._owned is not None:
                self._owned.abandon_step()
        return None

    def close(self) -> None:
        """End the threads, and the store where there is one."""
        if self._owned is None:
            self._execution.close()
        else:
            self._owned.owner.close()

    def _run(self, begun: BegunStep) -> None:
        num = self._config.batch.micro_batches_at(begun.step)
        block = self._systems.block(num)
        batches = self._dataset.micro_batches(begun.step, num, block)
        device = self._device.torch_device
        forwards = [forward_of(self._model, batch, device) for batch in batches]
        root = StepRoot(batches, num, begun.loss_scale, self._systems, self._device)

        def seed(index: int) -> None:
            seed_micro_batch(self._config.seed, begun.step, block.start + index)

        if self._owned is not None:
            self._owned.begin_step(begun)
        with self._systems.measured(begun), keeping_freed_memory():
            self._execution.run(forwards, root, seed)
            if self._owned is not None:
                self._owned.report()


def _find_data(begun: BegunRun) -> TokenDataset:
    """The run's tokens, prepared here where they are not."""
    config = begun.config
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    folder = begun.data_folder
    dataset = find_dataset(folder, preparation.sampling, begun.data)
    if dataset is None:
        dataset = prepare(preparation, folder, lambda progress: None)
    if dataset.fingerprint != begun.data:
        raise error(
            "systems-data",
            f"the batches of {folder} on this host are not those of the system that leads",
            notes=(f"expected the fingerprint {begun.data}", f"found {dataset.fingerprint}"),
            help="let all hosts see one data folder, or the same source",
        )
    return dataset
