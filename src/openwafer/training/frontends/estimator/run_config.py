"""How an estimator's runs go: where checkpoints are, and how often they are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from openwafer.config import PathLike
from openwafer.diagnostics import did_you_mean, error

__all__ = ["CSRunConfig", "RunConfig"]

_PLACES: Final = frozenset(
    (
        "cs_config",
        "cs_ip",
        "stack_params",
        "system_config",
        "use_cs",
    )
)
_DISTRIBUTION: Final = frozenset(
    (
        "checkpoint_save_graph_def",
        "device_fn",
        "eval_distribute",
        "experimental_distribute",
        "experimental_max_worker_delay_secs",
        "keep_checkpoint_every_n_hours",
        "protocol",
        "session_config",
        "session_creation_timeout_secs",
        "train_distribute",
    )
)


@dataclass(frozen=True, init=False)
class RunConfig:
    """How an estimator's runs go.

    Attributes:
        model_dir: folder of checkpoints.
        tf_random_seed: seeds torch before a model is built anew; without it, nothing does.
        save_summary_steps: every how many steps the loss goes to TensorBoard, where that is
            installed.
        save_checkpoints_steps: every how many steps a checkpoint is written.
        save_checkpoints_secs: the same by time; 600 if neither is given.
        keep_checkpoint_max: how many of them stay; 0 or None keeps all.
        log_step_count_steps: every how many steps step and loss are logged.
        vendor: what a machine, a session of TensorFlow or a cluster is told; nothing reads it.

    Raises:
        OpenwaferError: ``estimator-config``.
    """

    model_dir: PathLike | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100
    vendor: Mapping[str, Any] = field(default_factory=dict)

    def __init__(self, model_dir: PathLike | None = None, **options: Any) -> None:
        known = [name for name in self.__dataclass_fields__ if name != "vendor"]
        vendor = {name: options.pop(name) for name in [*options] if name in self._unread()}
        for name in options:
            if name not in known:
                raise error(
                    "estimator-config",
                    f"{type(self).__name__} has no option {name!r}",
                    help=did_you_mean(name, sorted((*known, *self._unread()))),
                )
        if options.get("save_checkpoints_steps") and options.get("save_checkpoints_secs"):
            raise error(
                "estimator-config",
                f"save_checkpoints_steps is {options['save_checkpoints_steps']} and "
                f"save_checkpoints_secs is {options['save_checkpoints_secs']}",
                help="give one of them",
            )
        if options.get("save_checkpoints_steps") is None:
            options.setdefault("save_checkpoints_secs", 600.0)
        for name, value in {**options, "model_dir": model_dir, "vendor": vendor}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def _unread(cls) -> frozenset[str]:
        return _DISTRIBUTION

    def replace(self, **changes: Any) -> "RunConfig":
        """The same with other values."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if {"save_checkpoints_steps", "save_checkpoints_secs"} & changes.keys():
            del given["save_checkpoints_steps"], given["save_checkpoints_secs"]
        vendor = given.pop("vendor")
        return type(self)(**{**given, **vendor, **changes})


class CSRunConfig(RunConfig):
    """A :class:`RunConfig` that may also say where a machine is: ``cs_ip``, ``cs_config``."""

    @classmethod
    def _unread(cls) -> frozenset[str]:
        return _DISTRIBUTION | _PLACES

    def __getattr__(self, name: str) -> Any:
        if name in _PLACES:
            return self.vendor.get(name)
        raise AttributeError(name)
