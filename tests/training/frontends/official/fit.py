"""Runs configs of the Model Zoo as they are, in the vendor's own Python, and writes all figures.

Started as a file, where nothing of openwafer can be imported:
`python fit.py CPU|CASTS|CSX bf16|fp32 FOLDER NAME ...`, for configs `FOLDER/NAME.yaml`. `CASTS` is
the CPU backend in the formats of CSX. `NAME:25` ends at step 25, and `=data` writes the data of
all. Figures are lines of JSON, in
`FOLDER/NAME-BACKEND-PRECISION.jsonl`. Each config runs in a fork, since a process of the vendor's
packages has one backend, and its imports take seconds.
"""

import contextlib
import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cerebras.pytorch as cstorch
import h5py
import numpy as np
import torch
import yaml
from cerebras.modelzoo.common import half_dtype
from cerebras.modelzoo.trainer import extensions  # noqa: F401 - its import takes seconds
from cerebras.modelzoo.trainer.callbacks import MixedPrecision
from cerebras.modelzoo.trainer.loggers import Logger
from cerebras.modelzoo.trainer.utils import run_trainer


class Figures(Logger):  # type: ignore[misc]
    """Writes what is logged with all digits; the vendor's own loggers round."""

    def __init__(self, path: str, *, casts: bool) -> None:
        self.path = Path(path)
        self.casts = casts
        self.without_casts = contextlib.ExitStack()

    def on_before_forward(self, trainer: Any, *_: Any) -> None:
        # On CSX a config cannot switch mixed precision off, and nothing is there to before now.
        if trainer.backend.is_csx and not self.casts:
            cstorch.amp.enable_mixed_precision(False)
            self.without_casts.enter_context(cstorch.amp.disable_casts())
        if not trainer.backend.is_csx:
            forget_last_step(trainer)

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        figures = {name: float(value) for name, value in metrics.items()
                   if isinstance(value, int | float | torch.Tensor)}  # fmt: skip
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **figures}) + "\n")


def forget_last_step(trainer: Any) -> None:
    """On CSX a step is traced once, and nothing of one step is known in another.

    On the CPU backend a schedule's value is kept by the tensor of steps, which is counted up in
    place: RigL would have the drop fraction of its first step in all.
    """
    groups = trainer.callbacks["sparsity"].sparsity or cstorch.sparse.Group()
    for one in groups._groups:  # noqa: SLF001 - it has no way to count them
        if isinstance(one.algorithm, cstorch.sparse.RigL):
            one.algorithm.drop_fraction.cache_clear()
    if HANDLES:
        HANDLES[0]._clear_cache()  # noqa: SLF001 - as the backend of CSX does


HANDLES: list[Any] = []
"""Of the packages' own casts, where they are used on the CPU."""


def cast_as_on_csx() -> None:
    """Have the packages' own casts of CSX on the CPU backend, in place of torch's autocast."""
    HANDLES.append(cstorch.amp.init())
    MixedPrecision.autocast_context_manager = lambda _: contextlib.nullcontext()
    have_models_cast(lambda one: one.to(cstorch.amp.get_half_dtype()))
    for name in ("__mul__", "__rmul__"):
        setattr(torch.Tensor, name, with_rounded_number(getattr(torch.Tensor, name)))


def with_rounded_number(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A product whose number has the format of its tensor, as constants of a graph do."""

    def product(tensor: torch.Tensor, other: Any) -> torch.Tensor:
        if isinstance(other, float) and tensor.dtype is torch.bfloat16:
            other = torch.tensor(other, dtype=torch.bfloat16).item()
        return function(tensor, other)

    return product


def have_models_cast(cast: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Say what rotary positions and experts do where they want the 16-bit format.

    Of themselves they take it on CSX, where casts are switched off too, and on the CPU only in an
    autocast.
    """
    half_dtype._maybe_to_half_dtype_impl = cast  # noqa: SLF001


def fit(backend: str, precision: str, folder: Path, name: str) -> None:
    """Run a config on a backend."""
    name, _, max_steps = name.partition(":")
    params = yaml.safe_load((folder / f"{name}.yaml").read_text())
    run = f"{name}-{backend}-{precision}"
    init, is_evaluated = params["trainer"]["init"], "val_dataloader" in params["trainer"]["fit"]
    if backend == "CASTS":
        cast_as_on_csx()
    init["backend"] = {"backend_type": "CSX" if backend == "CSX" else "CPU"}
    init["model_dir"] = str(folder / run)
    is_cast = precision == "bf16"
    if not is_cast:
        have_models_cast(lambda one: one)
    figures = {"path": str(folder / f"{run}.jsonl"), "casts": is_cast}
    init["loggers"] = [{"Figures": figures}]
    if max_steps:
        init["loop"]["max_steps"] = int(max_steps)
    init["precision"]["enabled"] = is_cast or backend == "CSX"
    run_trainer("train_and_eval" if is_evaluated else "train", params)
    keep_initial_weights(folder / run / "checkpoint_0.mdl", folder / f"{run}.pt")


def keep_initial_weights(checkpoint: Path, path: Path) -> None:
    """Write what a run began with as a file that any torch reads."""
    state = cstorch.load(checkpoint)["model"]
    weights = {name: torch.from_numpy(cstorch.to_numpy(one)) for name, one in state.items()}
    torch.save({"model": weights}, path)


def write_data(folder: Path, vocabulary: int = 64, length: int = 16, number: int = 512) -> None:
    """Texts of tokens for a GPT, and pairs of texts for a T5, the same ones on each call."""
    tokens = np.random.default_rng(0).zipf(1.5, size=(number, length + 1)) % vocabulary
    before, after, ones = tokens[:, :-1], tokens[:, 1:], np.ones((number, length))
    kinds = {"texts": (before, ones, after), "pairs": (before, ones, before, ones, after)}
    for name, features in kinds.items():
        (folder / name).mkdir()
        with h5py.File(folder / name / "data-0.h5", "w") as file:
            file.attrs["n_examples"] = number
            file.create_dataset("data", data=(found := np.stack(features, 1).astype(np.int32)))
        np.save(folder / f"{name}.npy", found)


def main(backend: str, precision: str, folder: str, *names: str) -> int:
    """Run all; returns how many have failed."""
    forks = multiprocessing.get_context("fork")
    num_failed = 0
    for name in names:
        if name == "=data":
            write_data(Path(folder))
            continue
        process = forks.Process(target=fit, args=(backend, precision, Path(folder), name))
        process.start()
        process.join()
        num_failed += process.exitcode != 0
    return num_failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
