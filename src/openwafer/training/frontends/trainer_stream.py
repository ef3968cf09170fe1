"""The stream of a library's trainer, which builds its optimizers itself and may train again."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.training.frontends.loop.loop import StreamedLoop, stream_weights
from openwafer.training.frontends.loop.loop_systems import OneOrAll
from openwafer.training.stream.stream_options import StreamOptions


class TrainerStream:
    """Calls :func:`stream_weights` when a trainer begins to train.

    Args:
        device_memory, folder, keeps_masters, systems, options: as in :func:`stream_weights`.

    Attributes:
        loop: that of the model which was trained last; ``None`` before any.

    Raises:
        OpenwaferError: ``argument-bytes``, ``argument-path``.
    """

    def __init__(
        self,
        *,
        device_memory: Size,
        folder: PathLike | None = None,
        keeps_masters: bool = False,
        systems: OneOrAll | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        self._stream: partial[StreamedLoop] = partial(
            stream_weights,
            device_memory=bytes_of(device_memory, "device_memory"),
            folder=None if folder is None else path_of(folder, "folder"),
            keeps_masters=keeps_masters,
            systems=systems,
            options=options,
        )
        self.loop: StreamedLoop | None = None

    def begin(self, model: nn.Module, optimizers: Sequence[Any]) -> StreamedLoop:
        """Stream a model from its next forward with gradients on, unless it streams already.

        A model that streams with other optimizers gets its weights back first.

        Args:
            model: that of the trainer.
            optimizers: over its parameters, bare or as accelerate wraps them.

        Raises:
            OpenwaferError: as :func:`stream_weights`.
        """
        if self.loop is not None and self.loop.streams(model):
            if self.loop.is_stepped_by(optimizers):
                return self.loop
            self.loop.close()
        self.loop = self._stream(model, optimizers)
        return self.loop
