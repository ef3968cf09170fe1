"""What a trainer calls at the points of a run."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from openwafer.diagnostics import did_you_mean, error

if TYPE_CHECKING:
    from openwafer.training.frontends.model_zoo.trainer import Trainer

HOOKS: Final = frozenset(
    (
        "pre_setup",
        "setup",
        "post_setup",
        "finalize",
        *(f"on_fit_{point}" for point in ("start", "end", "exception")),
        *(
            f"on_{loop}_{point}"
            for loop in ("train", "validate")
            for point in (
                *("start", "end", "exception"),
                *("batch_start", "batch_end", "step_start", "step_end"),
            )
        ),
        *(
            f"on_{side}_{what}"
            for side in ("before", "after")
            for what in (
                *("forward", "backward", "optimizer_step", "optimizer_zero_grad"),
                *("scheduler_step", "save_checkpoint", "load_checkpoint"),
            )
        ),
        *("on_save_checkpoint", "on_load_checkpoint", "preprocess_checkpoint"),
    )
)
"""Methods that a callback may have. Each gets the trainer first."""

# The vendor's trainer calls them around its own states, which are none here.
_UNCALLED: Final = frozenset(
    (
        "on_save_trainer_state",
        "on_load_trainer_state",
        *(f"on_enter_{what}" for what in ("fit", "train", "validate", "validate_all")),
        "run_validation",
    )
)


class Callback:
    """What a trainer calls; a subclass writes the methods of `HOOKS` that it needs.

    All are called with the trainer, and then with what the Model Zoo's trainer gives: the model,
    then a batch with its number or its outputs, as in
    ``on_train_batch_end(trainer, model, outputs, batch, batch_idx)``.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in vars(cls):
            is_hook = name.startswith("on_") and callable(getattr(cls, name))
            if is_hook and name not in HOOKS | _UNCALLED:
                raise error(
                    "trainer-hook",
                    f"{cls.__name__} has the method {name}, which no trainer calls",
                    help=did_you_mean(name, HOOKS),
                )
            if name in _UNCALLED and name.startswith(("on_enter", "run_")):
                raise error(
                    "trainer-hook",
                    f"{cls.__name__} has the method {name}, which is not called here",
                    help="write " + name.replace("on_enter_", "on_") + "_start and its _end",
                )


def call(callbacks: Iterable[object], hook: str, trainer: "Trainer", *args: Any) -> None:
    """Call a method of all callbacks that have it, in their order."""
    for callback in callbacks:
        method = getattr(callback, hook, None)
        if method is not None:
            method(trainer, *args)
