"""What a system does that does not lead: the steps that it is told, with its share of the batch."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.diagnostics import error
from openwafer.training.collectives.signals import Signal, heard
from openwafer.training.data import TokenDataset, find_dataset, prepare
from openwafer.training.session.allocator import keeping_freed_memory, return_large_blocks
from openwafer.training.session.building import build_hollow_model, stream_options, tokenizer_of
from openwafer.training.session.forward import forward_of
from openwafer.training.session.seeding import seed_micro_batch
from openwafer.training.session.step_root import NotFiniteError, StepRoot
from openwafer.training.session.systems import BegunRun, BegunStep, Systems
from openwafer.training.store import StoreOptions
from openwafer.training.stream.assemble import make_device
from openwafer.training.stream.execute.replica_execution import ReplicaExecution
from openwafer.training.stream.plan.dry_run import autocast


def follow(systems: Systems) -> None:
    """Compute this system's share of a run's steps until the leader ends it.

    Raises:
        OpenwaferError: ``rank-lost``, ``systems-data``, or whatever the model and the device meet.
    """
    return_large_blocks()
    while (signal_and_content := heard(systems.signals))[0] is Signal.MEASURE:
        systems.measure()
    signal, content = signal_and_content
    if signal is Signal.END:
        return
    assert isinstance(content, BegunRun)
    follower = _Follower(systems, content)
    try:
        while (heard_next := heard(systems.signals))[0] is Signal.STEP:
            begun = heard_next[1]
            assert isinstance(begun, BegunStep)
            follower.run(begun)
    except NotFiniteError:
        # The leader has met it, too, and tells of it.
        return
    finally:
        follower.execution.close()


class _Follower:
    """The model of a run on a system without its store."""

    def __init__(self, systems: Systems, begun: BegunRun) -> None:
        self._systems = systems
        self._config = config = begun.config
        self._dataset = _find_data(begun)
        with TemporaryDirectory(prefix="openwafer-") as scratch:
            vocab_size = self._dataset.tokenizer.vocab_size
            self._model = build_hollow_model(config, vocab_size, Path(scratch))
        self._device = make_device(stream_options(config, StoreOptions()))
        casting = partial(autocast, self._device.torch_device, config.precision.autocast_dtype)
        self.execution = ReplicaExecution(
            self._model, begun.plan, self._device, casting, systems.replicas_by(config.reduction)
        )
        watch = self.execution.executor.watch
        watch.planned = begun.kinds
        watch.planned_peak_bytes = begun.predicted_peak_bytes
        watch.depends_on_values = begun.depends_on_values

    def run(self, begun: BegunStep) -> None:
        num = self._config.batch.num_micro_batches
        block = self._systems.block(num)
        batches = self._dataset.micro_batches(begun.step, num, block)
        device = self._device.torch_device
        forwards = [forward_of(self._model, batch, device) for batch in batches]
        root = StepRoot(batches, num, begun.loss_scale, self._systems)

        def seed(index: int) -> None:
            seed_micro_batch(self._config.seed, begun.step, block.start + index)

        with self._systems.measured(begun), keeping_freed_memory():
            self.execution.run(forwards, root, seed)


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
