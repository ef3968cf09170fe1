"""What scripts call ``cm``: where they run, the step they are in, and what they save."""

import logging
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Protocol

import torch

from openwafer.atomic_file import replacing
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.training.frontends.scripts.one_process import (
    get_ordinal,
    get_streaming_rank,
    is_master_ordinal,
    is_receiver,
    is_streamer,
    num_receivers,
    num_streamers,
    num_tasks,
)
from openwafer.training.frontends.session import program
from openwafer.training.torch_private import pytree

__all__ = [
    "add_step_closure",
    "device",
    "get_ordinal",
    "get_run_step",
    "get_streaming_rank",
    "is_appliance",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "is_wse_device",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "num_receivers",
    "num_streamers",
    "num_tasks",
    "print_update",
    "rendezvous",
    "run_step_closures",
    "save",
    "set_run_config",
    "set_state_names",
    "set_target_num_replicas",
    "step_closure",
    "to_cpu",
    "use_cs",
    "write_to_summary",
]

_LOG = logging.getLogger(__name__)


class SummaryWriter(Protocol):
    """What takes numbers by step, such as that of ``torch.utils.tensorboard``."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> None:
        """Take one."""


# Where the script runs: one process, which makes the batches and computes.


def use_cs() -> bool:
    """Whether weights stream here: from ``cbtorch.initialize`` on."""
    return program.running() is not None


def is_wse_device() -> bool:
    """See :func:`use_cs`."""
    return use_cs()


def is_appliance() -> bool:
    """Whether a cluster runs the script: this process does."""
    return False


def device() -> torch.device:
    """The device that a step computes on, to which the loader brings its batches."""
    return program.current("cm.device").device


def rendezvous(tag: str, payload: str | bytes = b"") -> list[str | bytes]:
    """Wait for the other processes, of which there are none, and return what each has brought."""
    return [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """What a function makes of the values of all processes, a list of one."""
    return reduce_fn([data])


def set_target_num_replicas(num_replicas: int) -> None:
    """Ask for replicas of the model.

    Raises:
        OpenwaferError: ``session-replicas`` for other than 1.
    """
    if num_replicas != 1:
        raise error(
            "session-replicas",
            f"cm.set_target_num_replicas({num_replicas}) asks for replicas, and a session has one",
            help="ask for 1; several systems train one model by openwafer.stream_weights",
        )


# The step.


def get_run_step() -> int:
    """How many batches the session has given; 1 in the first step, 0 outside of a session."""
    running = program.running()
    return 0 if running is None or running.session is None else running.session.num_batches


def set_run_config(num_steps: float, checkpoint_steps: int = 0, fetch_steps: int = 0) -> None:
    """Tell how many steps come, and in which ones something is saved or read.

    Nothing follows from it: every step may be read.
    """


def set_state_names(state: Any, prefix: str = "") -> None:
    """Tell how a checkpoint names the tensors of a state, for compilers that rename them.

    Nothing follows from it: :func:`save` writes a state under the names that it has.
    """


def add_step_closure(
    closure: Callable[..., object], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = {}
) -> None:
    """Call a closure at the end of this step of the session; outside of one, now."""
    running = program.running()
    if running is None or running.session is None:
        closure(*args, **kwargs)
    else:
        running.session.add_step_closure(closure, args, kwargs)


def step_closure(function: Callable[..., object]) -> Callable[..., None]:
    """A function that is called at the end of the step in which the script calls it."""

    @wraps(function)
    def later(*args: Any, **kwargs: Any) -> None:
        add_step_closure(function, args, kwargs)

    return later


def mark_step() -> None:
    """End the step of the session, as a loop does that leaves its loader early."""
    running = program.running()
    if running is not None and running.session is not None:
        running.session.mark_step()


def run_step_closures() -> None:
    """See :func:`mark_step`."""
    mark_step()


# What leaves the script.


def to_cpu(values: Any) -> Any:
    """The same structure with its tensors in host memory."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), values)


def master_print(*values: object, flush: bool = False) -> None:
    """Print in the first process."""
    sys.stdout.write(" ".join(map(str, values)) + "\n")
    if flush:
        sys.stdout.flush()


def print_update(
    device: object,
    step: int,
    loss: float,
    mode: str,
    summary_writer: SummaryWriter | None = None,
) -> None:
    """Log the loss of a step, and give it to a writer of summaries."""
    _LOG.info("| %s Device=%s Step=%d Loss=%.5f", mode.title(), device, step, loss)
    write_to_summary(summary_writer, step, {"loss": loss})


def write_to_summary(
    writer: SummaryWriter | None,
    global_step: int,
    dict_to_write: Mapping[str, Any] = {},
) -> None:
    """Give numbers of a step to a writer of summaries, where there is one."""
    if writer is not None:
        for tag, value in dict_to_write.items():
            writer.add_scalar(tag, value, global_step)


def save(
    data: Any,
    file_or_path: PathLike,
    master_only: bool = True,
    post_transfer_callback: Callable[[Any], Any] | None = None,
) -> None:
    """Write a structure of tensors for ``torch.load``, whole or not at all.

    Args:
        data: such as state_dicts of model and optimizer, whose weights come from the store.
        file_or_path: where to; the folder exists.
        master_only: whether the first process alone writes; there is no other.
        post_transfer_callback: gets the structure in host memory, and returns what is written.
    """
    found = to_cpu(data)
    if post_transfer_callback is not None:
        found = post_transfer_callback(found)
    with replacing(path_of(file_or_path, "file_or_path")) as temporary:
        torch.save(found, temporary)
