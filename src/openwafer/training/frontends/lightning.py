"""A strategy of Lightning whose model streams.

It asks for Lightning, which ``pip install openwafer[lightning]`` brings.
"""

from collections.abc import Callable
from functools import partial

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.optim import Optimizer

from openwafer.config import PathLike, Size
from openwafer.diagnostics import error
from openwafer.training.frontends.loop.loop import StreamedLoop
from openwafer.training.frontends.trainer_stream import TrainerStream
from openwafer.training.store.update_rules.optimizers import parameters_of
from openwafer.training.stream.stream_options import PlanInput, StreamOptions


class StreamedStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """``lightning.pytorch.Trainer(strategy=StreamedStrategy("2GiB"))`` streams what it fits.

    What streams is a module that a step calls: the one named, else the only part of the
    LightningModule that has weights, else the LightningModule itself, whose forward its steps then
    call. It streams from the first training step on, also behind ``fit()``, until
    ``streamed.close()``.

    Args:
        device_memory, folder, keeps_masters, options: as in :func:`stream_weights`.
        module: which part streams, as ``"model"``; it has all weights that are trained.

    Raises:
        OpenwaferError: as :func:`stream_weights`, when a fit begins; ``lightning-module``.
    """

    strategy_name = "streamed"

    def __init__(
        self,
        device_memory: Size,
        *,
        module: str | None = None,
        folder: PathLike | None = None,
        keeps_masters: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        chosen = options or StreamOptions()
        super().__init__(device=PlanInput(chosen).make_device().torch_device)
        self._stream = TrainerStream(
            device_memory=device_memory,
            folder=folder,
            keeps_masters=keeps_masters,
            options=chosen,
        )
        self._module = module

    @property
    def streamed(self) -> StreamedLoop | None:
        """The loop of the model, which tells what was planned; ``None`` before a fit."""
        return self._stream.loop

    def setup(self, trainer: Trainer) -> None:
        """Build optimizers as ever, and stream the model with them.

        Args:
            trainer: whose model and optimizers they are.
        """
        super().setup(trainer)
        if self.optimizers:
            part = streamed_part(self.lightning_module, self._module)
            self._stream.begin(part, self.optimizers)
            plugin = self.precision_plugin
            # Of the plugin's class, so that a second fit wraps it once.
            clip = partial(type(plugin).clip_grad_by_norm, plugin)
            plugin.clip_grad_by_norm = partial(self._clip, list(part.parameters()), clip)

    def _clip(
        self,
        parameters: list[nn.Parameter],
        clip: Callable[[Optimizer, float], None],
        optimizer: Optimizer,
        clip_val: float,
    ) -> None:
        """Clip record by record where all that streams is clipped; else as Lightning does."""
        own = [p for p in parameters if p.requires_grad]
        if [*map(id, own)] == [id(p) for p in parameters_of(optimizer) if p.requires_grad]:
            assert self.streamed is not None
            self.streamed.clip_grad_norm_(clip_val)
        else:
            clip(optimizer, clip_val)


def streamed_part(module: LightningModule, name: str | None) -> nn.Module:
    """What streams of a LightningModule, see :class:`StreamedStrategy`.

    Raises:
        OpenwaferError: ``lightning-module`` where it has no part of that name.
    """
    parts = dict(module.named_children())
    if name is None:
        weighted = [part for part in parts.values() if next(part.parameters(), None) is not None]
        is_all = len(weighted) == 1 and not list(module.parameters(recurse=False))
        chosen: nn.Module = weighted[0] if is_all else module
        return chosen
    try:
        named: nn.Module = module.get_submodule(name)
    except AttributeError as cause:
        raise error(
            "lightning-module",
            f"StreamedStrategy(module={name!r}): this {type(module).__name__} has no such part, "
            f"and has {', '.join(parts)}",
            help="name the attribute that holds the model, or leave module out",
        ) from cause
    return named
