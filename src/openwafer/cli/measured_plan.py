"""Plans this machine from measurements, in the form of plans for systems."""

from collections.abc import Iterator

from openwafer.figures import Figure, Origin
from openwafer.planning.system_plan import Mode, Section, SystemPlan, TrainingTask, training_section
from openwafer.training.plan_record import Activations, PlanRecord
from openwafer.training.plan_record import Mode as RecordedMode
from openwafer.training.session import RunConfig

MODES = {
    RecordedMode.RESIDENT: Mode.RESIDENT,
    RecordedMode.STREAMED: Mode.STREAMED,
    RecordedMode.PIPELINED: Mode.PIPELINED,
}
RUN_WITHOUT_MEMORY = "a step run on tensors without memory"
DONE = {
    Activations.KEEP: "kept",
    Activations.RECOMPUTE: "recomputed layer by layer",
    Activations.OFFLOAD: "put aside on the host",
}
GIGABYTE = 1e9


def plan_of(record: PlanRecord, config: RunConfig, task: TrainingTask) -> SystemPlan:
    """What was planned and measured for a run; what was not predicted is left out."""
    peak, budget = record.predicted_peak_bytes, record.device_budget_bytes
    totals = tuple(_of_training(record, config))
    return SystemPlan(
        system=f"this machine, on {record.device}",
        precision=str(config.precision),
        num_systems=record.systems,
        mode=MODES[record.mode],
        reason=f"its peak is {peak / GIGABYTE:,.4g} GB, and the device may use "
        f"{budget / GIGABYTE:,.4g} GB",
        activations=", ".join(sorted({DONE[layer.activations] for layer in record.layers})),
        limit=str(record.step_limit or "what is not predicted"),
        sections=(
            training_section(task),
            Section("system", tuple(_of_machine(record, config))),
            Section("memory", tuple(_of_memory(record))),
            Section("step", tuple(_of_step(record, config))),
            *((Section("all", totals),) if totals else ()),
        ),
    )


def _inferred(name: str, value: float, unit: str, source: str) -> Figure:
    return Figure(name, value, unit, Origin.INFERRED, source)


def _of_machine(record: PlanRecord, config: RunConfig) -> Iterator[Figure]:
    is_given = config.device_memory is not None
    yield Figure(
        "memory of the device",
        record.device_budget_bytes,
        "B",
        Origin.GIVEN if is_given else Origin.MEASURED,
        "device_memory in the config" if is_given else "what the device has free",
    )
    if record.disk_limit_bytes_per_second is not None:
        rate, source = record.disk_limit_bytes_per_second, "read and written just now"
        yield Figure("disk", rate, "B/s", Origin.MEASURED, source)


def _of_memory(record: PlanRecord) -> Iterator[Figure]:
    peak = record.predicted_peak_bytes
    yield _inferred("peak of the device", peak, "B", RUN_WITHOUT_MEMORY)
    share = peak / record.device_budget_bytes
    yield _inferred("share of the memory", share, "", "peak / memory of the device")
    if record.predicted_host_bytes is not None:
        source = "the store's part, and what the process holds now"
        yield _inferred("peak of the host", record.predicted_host_bytes, "B", source)


def _of_step(record: PlanRecord, config: RunConfig) -> Iterator[Figure]:
    yield _inferred("operations", record.step_flops, "FLOP", RUN_WITHOUT_MEMORY)
    moved = record.step_bytes
    for name, num_bytes in (
        ("fetched", moved.fetch),
        ("pushed", moved.push),
        ("read from disk", moved.disk_read),
        ("written to disk", moved.disk_write),
    ):
        yield _inferred(name, num_bytes, "B", "the schedule of the step")
    seconds = record.predicted_step_seconds
    if seconds is not None:
        yield _inferred("step", seconds, "s", "operators, updates and transfers timed just now")
        tokens = max(config.batch.sizes.all) * config.batch.sequence_length
        yield _inferred("tokens in a second", tokens / seconds, "", "tokens of a step / step")


def _of_training(record: PlanRecord, config: RunConfig) -> Iterator[Figure]:
    sizes = config.batch.sizes
    if not config.steps:
        return
    tokens = sizes.before(config.steps) * config.batch.sequence_length
    yield _inferred("tokens", tokens, "", "steps x tokens of a step")
    if record.predicted_step_seconds is not None:
        seconds = record.predicted_step_seconds * config.steps
        name, step = ("time at most", "largest step") if sizes.changes else ("time", "step")
        source = f"steps x {step}, without evaluation and checkpoints"
        yield _inferred(name, seconds, "s", source)
