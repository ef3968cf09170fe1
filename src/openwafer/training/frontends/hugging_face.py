"""The Trainer of transformers, and what is built on it, with weights that stream.

It asks for accelerate, which ``pip install openwafer[hugging-face]`` brings.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from openwafer.config import PathLike, Size
from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop import StreamedLoop
from openwafer.training.frontends.loop.loop_systems import OneOrAll
from openwafer.training.frontends.loop.model_checks import COMPILE_LAYERS, is_streamed
from openwafer.training.frontends.trainer_stream import TrainerStream
from openwafer.training.stream.stream_options import StreamOptions

_DEALS_WEIGHTS = (
    "deals weights and optimizer states out by itself",
    'leave it out: a StreamedTrainer(..., systems="all") shares one model among processes',
)
_CASTS_MODEL = (
    "casts the whole model before an evaluation",
    "leave it out: bf16=True computes in 16 bits; or evaluate what trainer.streamed.close() leaves",
)
REFUSED_ARGUMENTS = {
    "deepspeed": _DEALS_WEIGHTS,
    "fsdp": _DEALS_WEIGHTS,
    "fp16_full_eval": _CASTS_MODEL,
    "bf16_full_eval": _CASTS_MODEL,
    "torch_compile": ("compiles the model as a whole", "leave it out, and " + COMPILE_LAYERS),
}
"""Arguments of a Trainer that do to weights what a stream cannot follow, and what to do."""


def check_arguments(args: TrainingArguments) -> None:
    """Refuse what cannot go with weights that stream.

    Raises:
        OpenwaferError: ``trainer-argument``, ``trainer-devices``.
    """
    for name, (what, remedy) in REFUSED_ARGUMENTS.items():
        value = getattr(args, name)
        if value:
            raise error(
                "trainer-argument",
                f"TrainingArguments({name}={value!r}) {what}, and the weights are in a parameter "
                "store",
                help=remedy,
            )
    if args.n_gpu > 1:
        raise error(
            "trainer-devices",
            f"this process has {args.n_gpu} devices, on each of which DataParallel puts a copy of "
            "the model",
            help="show it one device, as CUDA_VISIBLE_DEVICES=0 does",
        )


class StreamedTrainer(Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` whose weights stream; all else is the Trainer's.

    The model streams from the first step on, also behind ``train()``, until ``streamed.close()``.
    A subclass of it and of another trainer streams that one: ``class StreamedSFTTrainer(
    StreamedTrainer, SFTTrainer)``.

    Args:
        args, kwargs: of the trainer.
        device_memory, folder, keeps_masters, options: as in :func:`stream_weights`.
        systems: likewise; ``"all"`` averages the gradients of all processes, as a Trainer expects.

    Raises:
        OpenwaferError: what :func:`check_arguments` raises, and, when training begins, what
            :func:`stream_weights` does.
    """

    def __init__(
        self,
        *args: Any,
        device_memory: Size,
        folder: PathLike | None = None,
        keeps_masters: bool = False,
        systems: OneOrAll | None = None,
        options: StreamOptions | None = None,
        **kwargs: Any,
    ) -> None:
        self._stream = TrainerStream(
            device_memory=device_memory,
            folder=folder,
            keeps_masters=keeps_masters,
            systems=systems,
            options=replace(options or StreamOptions(), averages_gradients=systems == "all"),
        )
        super().__init__(*args, **kwargs)
        check_arguments(self.args)

    @property
    def streamed(self) -> StreamedLoop | None:
        """The loop of the model, which tells what was planned; ``None`` before training."""
        return self._stream.loop

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Build the optimizer as the trainer does, and stream the model with it.

        Args:
            args, kwargs: of the trainer.
        """
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if self._stream.begin(self.model, [optimizer]).num_systems > 1:
            # For training it would be wrapped in DistributedDataParallel.
            self.accelerator.prepare_model(self.model, device_placement=False, evaluation_mode=True)
        return optimizer

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        return self._norm(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return self._norm(math.inf) if grad_norm is None else grad_norm

    def _norm(self, max_norm: float) -> torch.Tensor:
        """Clip record by record, where the Trainer would read each gradient three times."""
        self.accelerator.unscale_gradients()
        assert self._stream.loop is not None
        return self._stream.loop.clip_grad_norm_(max_norm)


class StreamingCallback(TrainerCallback):  # type: ignore[misc]
    """Streams the weights of the trainer that it is given to, which stays as it is.

    It is for a trainer whose class cannot be chosen; :class:`StreamedTrainer` does more: several
    systems, fp32 masters, and clipping that reads each record once.

    Args:
        device_memory, folder, options: as in :func:`stream_weights`.

    Raises:
        OpenwaferError: see :class:`StreamedTrainer`; ``trainer-systems`` in one of several
            processes.
    """

    def __init__(
        self,
        device_memory: Size,
        *,
        folder: PathLike | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        self._stream = TrainerStream(device_memory=device_memory, folder=folder, options=options)

    @property
    def streamed(self) -> StreamedLoop | None:
        """See :class:`StreamedTrainer`."""
        return self._stream.loop

    def on_init_end(self, args: TrainingArguments, *_: object, **__: object) -> None:
        """Refuse arguments before anything is loaded for them."""
        check_arguments(args)
        if args.world_size > 1:
            raise error(
                "trainer-systems",
                f"the trainer is one of {args.world_size} processes, and wraps its model in "
                "DistributedDataParallel",
                help='take StreamedTrainer(..., systems="all") in its place',
            )

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: Any,
        control: Any,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        **_: object,
    ) -> None:
        """Stream what the trainer has built and, where it resumes, loaded, unless it streams."""
        self.on_init_end(args)
        loop = self._stream.loop
        if is_streamed(model) and not (loop is not None and loop.streams(model)):
            return
        self._stream.begin(model, [optimizer])
