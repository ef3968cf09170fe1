"""Whether several systems stream or have stages, where the config leaves it to the plan.

Both ways are planned, and the one whose step is predicted to be shorter is taken. Bits do not
depend on it: a run goes on in the way that was chosen while it has as many systems.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics.run_record import PLAN
from openwafer.training.plan_record import Mode, ModeChoice, PlanRecord
from openwafer.training.session.config import RunConfig
from openwafer.training.session.pipelined.plan import (
    as_one_system,
    in_stages,
    is_pipelined,
    refused_option,
    rooms_of,
)
from openwafer.training.session.planning import ToPlan
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.stream.assemble import Planned

UNMEASURED = (
    "how fast weights pass between the systems is measured when they meet, and stages are "
    "compared with it then"
)


def is_left_to_plan(config: RunConfig) -> bool:
    """Whether the plan chooses between streaming and stages."""
    return config.systems > 1 and config.streaming.mode is None


def with_stages(config: RunConfig, num_stages: int) -> RunConfig:
    """The same run in so many stages."""
    streaming = replace(config.streaming, mode=Mode.PIPELINED, stages=num_stages)
    return replace(config, streaming=streaming)


def _cut(parts: ToPlan, whole: Planned, config: RunConfig) -> Planned:
    """The plan of one system in the stages of a config, which fit the hosts of its systems."""
    return in_stages(whole, config, rooms_of(config, parts.measured))


def _planned(parts: ToPlan, config: RunConfig) -> Planned:
    """The plan of a config that says how several systems share the work, or streams."""
    whole = parts.planned(as_one_system(config))
    return _cut(parts, whole, config) if is_pipelined(config) else whole


def plan_of_before(folder: RunFolder) -> PlanRecord | None:
    """What was planned when the run in a folder began or went on last, where that can be read."""
    if folder.config.is_file():
        with suppress(OpenwaferError):
            return PLAN.read(folder.path)
    return None


def plan_systems(parts: ToPlan, config: RunConfig, folder: RunFolder) -> Planned:
    """Plan a run of several systems, in the way that is chosen where its config leaves it open.

    Raises:
        OpenwaferError: what the plan raises, of streaming where neither way is possible.
    """
    if not is_left_to_plan(config):
        return _planned(parts, config)
    before = plan_of_before(folder)
    if before is not None and before.choice is not None and before.systems == config.systems:
        # What has changed since may leave no room for it.
        with suppress(OpenwaferError):
            return replace(_planned(parts, _as_before(config, before)), choice=before.choice)
    return _chosen(parts, config)


def _as_before(config: RunConfig, before: PlanRecord) -> RunConfig:
    if before.pipeline is None:
        return config
    return with_stages(config, len(before.pipeline.stages))


def _chosen(parts: ToPlan, config: RunConfig) -> Planned:
    try:
        streamed = _planned(parts, config)
    except OpenwaferError as failure:
        staged = _fastest_stages(parts, config)
        if isinstance(staged, str):
            raise
        reason = f"weights cannot stream: {_told(failure)}"
        choice = ModeChoice(None, staged.report.predicted_step_seconds, reason)
        return replace(staged, choice=choice)
    if parts.measured is None:
        return replace(streamed, choice=ModeChoice(None, None, UNMEASURED))
    staged = _fastest_stages(parts, config)
    if isinstance(staged, str):
        streaming = streamed.report.predicted_step_seconds
        reason = f"no stages are made: {staged}"
        return replace(streamed, choice=ModeChoice(streaming, None, reason))
    return _faster(streamed, staged)


def _faster(streamed: Planned, staged: Planned) -> Planned:
    streams, stays = streamed.report.predicted_step_seconds, staged.report.predicted_step_seconds
    if streams is None or stays is None:
        reason = "the time of a step is not predicted, so that stages cannot be compared"
        return replace(streamed, choice=ModeChoice(streams, stays, reason))
    choice = ModeChoice(streams, stays, "its predicted step is the shorter one")
    return replace(staged if stays < streams else streamed, choice=choice)


def _fastest_stages(parts: ToPlan, config: RunConfig) -> Planned | str:
    """The shortest step in stages, as many in a replica as there can be, or why there are none."""
    refused = refused_option(with_stages(config, config.systems)) or _streaming_option(config)
    if refused is not None:
        return f"{refused[0]} is set, and {refused[1]}"
    found, failures = [], []
    try:
        whole = parts.planned(as_one_system(with_stages(config, config.systems)))
        for num_stages in _numbers_of_stages(config.systems):
            asked = with_stages(config, num_stages)
            try:
                found.append(_cut(parts, whole, asked))
            except OpenwaferError as failure:
                failures.append(_told(failure))
    except OpenwaferError as failure:
        return _told(failure)
    if not found:
        return failures[-1]
    return min(found, key=lambda one: one.report.predicted_step_seconds or 0.0)


def _numbers_of_stages(num_systems: int) -> Iterator[int]:
    return (number for number in range(2, num_systems + 1) if num_systems % number == 0)


def _streaming_option(config: RunConfig) -> tuple[str, str] | None:
    """An option that only has a meaning where weights stream, and why."""
    if config.streaming.prefetch_layers is not None:
        return "streaming.prefetch_layers", "stages fetch no layers"
    if config.streaming.link_per_second is not None:
        return "streaming.link_per_second", "no weights pass over a link to the device of a stage"
    return None


def _told(failure: OpenwaferError) -> str:
    return failure.diagnostics[0].message
