"""A run's model as it was saved, to read it: weights without optimizer states, nothing written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.training.data.tokenizer import load_tokenizer
from openwafer.training.session.allocator import return_large_blocks
from openwafer.training.session.building import (
    build_hollow_model,
    make_workload,
    plan_input,
)
from openwafer.training.session.config import RunConfig
from openwafer.training.session.found_stores import FoundStores
from openwafer.training.session.opened_model import OpenedModel, room_beside_weights
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import BufferWatch
from openwafer.training.session.saved_arrays import SavedWeights, saved_arrays
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.store import ParameterStore, Part, StoreOptions, Tier
from openwafer.training.store.checkpoint import require_match
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.store.store_folder import read_manifest
from openwafer.training.stream.assemble import (
    Planned,
    create_store,
    execute,
    plan_run,
)
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import HeldGradients
from openwafer.training.stream.records import write_weights


@contextmanager
def opened_to_read(
    config: RunConfig,
    folder: RunFolder,
    saved: SavedRun,
    notify: Callable[[str], None],
    options: StoreOptions,
) -> Iterator[OpenedModel]:
    """Context in which the model of a saved step can run; nothing is written to the run's folder.

    Weights that do not fit host memory stream from the run's own store where it holds that step,
    else from a copy in the system's folder for temporary files.

    Args:
        config: of the run.
        folder: of the run.
        saved: the step; where the store holds it, no process may write to that.
        notify: told what takes long.
        options: how a store talks to the disk.
    """
    return_large_blocks()
    tokenizer = load_tokenizer(folder.path)
    with TemporaryDirectory(prefix="openwafer-") as name:
        scratch = Path(name)
        notify("building the model")
        model = build_hollow_model(config, tokenizer.vocab_size, scratch)
        BufferWatch(model).restore(saved.state.buffers)
        notify("planning a step")
        planned = plan_run(
            replace(
                make_workload(model, config, tokenizer.vocab_size), held_gradients=HeldGradients()
            ),
            Updater((), model),
            replace(plan_input(config, options), keeps_gradients=False, commits_steps=False),
            folder=scratch,
        )
        notify("reading the weights")
        with closed_on_error(_store(planned, folder, saved, scratch)) as store:
            execution = execute(model, planned, store)
        try:
            room_bytes = room_beside_weights(planned)
            steps_done = saved.state.steps_done
            yield OpenedModel(config, model, tokenizer, execution, steps_done, room_bytes)
        finally:
            execution.close()
            store.close()


def _store(planned: Planned, folder: RunFolder, saved: SavedRun, scratch: Path) -> ParameterStore:
    if planned.uses_disk and _has_records(folder, saved.found, planned):
        found = read_manifest(folder.store).catalog.layouts
        elsewhere = {(record, part): Tier.DISK for record in found for part in Part}
        return ParameterStore.open(
            folder.store,
            placement=elsewhere | dict(planned.placement.tiers),
            ring_bytes=planned.ring_bytes,
            options=planned.given.options.store,
            read_only=True,
        )
    with saved_arrays(folder, saved) as arrays:
        weights = SavedWeights(arrays, saved.state.counts, wants_masters=False)
        layouts = planned.plan.layouts.values()
        require_match(folder.path, arrays.specs[Part.WEIGHTS], layouts, Part.WEIGHTS)
        with closed_on_error(create_store(planned, scratch / "store")) as store:
            write_weights(store, weights)
            return store


def _has_records(folder: RunFolder, found: FoundStores | None, planned: Planned) -> bool:
    """Whether the run's only store cuts the weights into the records of the plan."""
    if found is None or found.stores is not None or not found.are_in_place:
        return False
    stored, wanted = read_manifest(folder.store).catalog.layouts, planned.plan.layouts
    return stored.keys() == wanted.keys() and all(
        stored[record].parts[Part.WEIGHTS] == wanted[record].parts[Part.WEIGHTS]
        for record in stored
    )
