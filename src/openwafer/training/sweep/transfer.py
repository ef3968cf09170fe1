"""The config of a wide model from the best one of a sweep of narrow ones."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.methods.mup import Parametrization
from openwafer.training.methods.widths import width_of, with_widths
from openwafer.training.session import RunConfig
from openwafer.training.session.building import (
    build_hollow_model,
    expected_vocab_size,
    make_optimizers,
)


def parse_widths(text: str) -> Mapping[str, int]:
    """Widths that are written as in ``hidden_size=1024,num_heads=16``.

    Raises:
        OpenwaferError: ``option-value``.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {field.strip(): int(width) for field, width in pairs}
    except ValueError as cause:
        raise error(
            "option-value",
            f"{text!r} is no list of widths",
            help="such as hidden_size=1024,num_heads=16, by the fields of the model's config",
        ) from cause


def transferred(config: RunConfig, widths: Mapping[str, int]) -> RunConfig:
    """The same run at other widths under muP, which keeps the best settings where they are.

    A model at its own widths is its own base model, bit for bit, so that settings tuned without
    muP are those of a base of these widths. Under muP the base stays.

    Raises:
        OpenwaferError: ``sweep-transfer`` where muP does not know this model or optimizer, with
            its reason; ``width-field``.
    """
    is_mup = config.is_mup
    own = {field: width_of(config.model, field) for field in widths}
    base = config.base if is_mup else own
    missing = [field for field in widths if field not in base]
    if missing:
        raise error(
            "sweep-transfer",
            f"base has {', '.join(base)}, and {', '.join(missing)} is to change with the width",
            help="sweep with every width in base",
        )
    model = with_widths(config.model, widths)
    wide = replace(config, model=model, parametrization=Parametrization.MUP, base=base, name=None)
    try:
        _try_mup(wide)
    except OpenwaferError as refusal:
        told = refusal.diagnostics[0]
        raise error(
            "sweep-transfer",
            "muP does not know how to scale this run, and without it the best learning rate of one "
            f"width is not that of another: {told.message}",
            help=told.help or "tune at the width that you mean to train",
        ) from refusal
    return wide


def _try_mup(config: RunConfig) -> None:
    """Raise what muP refuses of the model and its optimizers; no weight is drawn."""
    vocab_size = expected_vocab_size(config)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_hollow_model(config, vocab_size, Path(scratch))
    make_optimizers(model, config, vocab_size)
