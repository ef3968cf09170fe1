"""What a system does that has a stage and does not lead."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.training.session.building import (
    build_hollow_model,
    make_optimizers,
    make_updater,
    make_workload,
    plan_input,
)
from openwafer.training.session.pipelined.flows import Flows
from openwafer.training.session.pipelined.leading import StageOfSystem, StageParts, store_of
from openwafer.training.session.pipelined.messages import (
    BegunEvaluation,
    BegunPass,
    BegunStages,
    Settled,
)
from openwafer.training.session.pipelined.plan import as_one_system
from openwafer.training.session.pipelined.stage_trainer import StageTrainer
from openwafer.training.session.systems import Systems
from openwafer.training.store import StoreOptions
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.systems.owner import LendParts, TakeParts, serve


@contextmanager
def following_stages(systems: Systems, begun: BegunStages) -> Iterator[Callable[[object], object]]:
    """Context of a run on this system; does what the system that leads tells.

    Raises:
        OpenwaferError: ``rank-lost``, or whatever the model and the device meet.
    """
    config, alone = begun.config, as_one_system(begun.config)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_hollow_model(alone, begun.vocab_size, Path(scratch))
    optimizers = make_optimizers(model, alone, begun.vocab_size)
    updater = make_updater(optimizers, model, alone)
    updater.counts = begun.counts
    workload = make_workload(model, alone, begun.vocab_size)
    device = plan_input(config, StoreOptions()).make_device()
    flows = Flows(workload, begun.stages.layers)
    parts = StageParts(config, workload, updater, device, begun.stages, flows)
    with closed_on_error(store_of(begun.stages, systems)) as store:
        execution = StageOfSystem(parts, store, systems)
    try:
        yield partial(_do, systems, execution, execution.trainer(optimizers))
    finally:
        execution.close()
        store.close()


def _do(systems: Systems, execution: StageOfSystem, trainer: StageTrainer, told: object) -> None:
    match told:
        case BegunPass():
            trainer.follow(told)
        case Settled():
            trainer.settle(told)
        case BegunEvaluation():
            execution.share_evaluation(told)
        case LendParts() | TakeParts():
            serve(execution.store, systems.control.group, told)
        case unknown:
            raise AssertionError(unknown)
