"""What a Trainer cannot have beside weights that stream, and what its user is told."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate", reason="the Trainer of transformers asks for accelerate")

from accelerate import dispatch_model

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.frontends.hugging_face import StreamingCallback, check_arguments
from tests.training.frontends.trainers import (
    STREAM,
    VOCABULARY,
    arguments,
    build_gpt2,
    by_callback,
    streamed,
)

pytestmark = pytest.mark.slow


def evaluates_in_fp16(folder: Path) -> None:
    streamed(arguments(folder, fp16_full_eval=True))


def evaluates_in_bf16(folder: Path) -> None:
    by_callback(arguments(folder, bf16_full_eval=True))


def compiles(folder: Path) -> None:
    streamed(arguments(folder, torch_compile=True))


def shards(folder: Path) -> None:
    args = arguments(folder)
    args.fsdp = "full_shard"
    check_arguments(args)


def shards_by_deepspeed(folder: Path) -> None:
    args = arguments(folder)
    args.deepspeed = "zero3.json"
    check_arguments(args)


def has_two_devices(folder: Path) -> None:
    args = arguments(folder)
    args._n_gpu = 2  # noqa: SLF001 - what the arguments find on a machine with two
    check_arguments(args)


def is_streamed_already(folder: Path) -> None:
    model = build_gpt2()
    stream_weights(model, torch.optim.SGD(model.parameters(), lr=0.1), **STREAM)
    streamed(arguments(folder), model=model).train()


def is_dispatched(folder: Path) -> None:
    model = build_gpt2()
    halves = {"transformer.wte": "cpu", "transformer.wpe": "disk", "transformer.drop": "cpu"}
    rest = {"transformer.h": "disk", "transformer.ln_f": "cpu", "lm_head": "cpu"}
    dispatch_model(model, {**halves, **rest}, main_device="cpu", offload_dir=str(folder))
    streamed(arguments(folder), model=model).train()


def has_no_values(_folder: Path) -> None:
    with torch.device("meta"):
        model = build_gpt2()
    stream_weights(model, torch.optim.SGD(model.parameters(), lr=0.1), **STREAM)


def has_no_size(_folder: Path) -> None:
    StreamingCallback("2 furlongs")


def has_no_optimizer(_folder: Path) -> None:
    stream_weights(build_gpt2(), "adamw", **STREAM)  # type: ignore[arg-type]


def resizes_while_it_streams(folder: Path) -> None:
    trainer = streamed(arguments(folder, max_steps=1))
    trainer.train()
    trainer.model.resize_token_embeddings(VOCABULARY + 8)


def casts_while_it_streams(folder: Path) -> None:
    trainer = streamed(arguments(folder, max_steps=1))
    trainer.train()
    trainer.model.half()


MISTAKES: list[tuple[Callable[[Path], None], str, str]] = [
    (evaluates_in_fp16, r"fp16_full_eval=True\) casts the whole model", "trainer-argument"),
    (evaluates_in_bf16, r"bf16_full_eval=True\) casts the whole model", "trainer-argument"),
    (compiles, r"torch_compile=True\) compiles the model as a whole", "trainer-argument"),
    (shards, r"fsdp='full_shard'\) deals weights", "trainer-argument"),
    (shards_by_deepspeed, r"deepspeed='zero3.json'\) deals weights", "trainer-argument"),
    (has_two_devices, "2 devices", "trainer-devices"),
    (is_streamed_already, "this GPT2LMHeadModel is streamed already", "model-streamed-already"),
    (is_dispatched, "accelerate that moves its weights", "layer-dispatched"),
    (has_no_values, "has no values", "weight-without-values"),
    (has_no_size, "device_memory", "argument-bytes"),
    (has_no_optimizer, "got 'adamw'", "optimizer-none"),
    (resizes_while_it_streams, "resize_token_embeddings", "streamed-model-resized"),
    (casts_while_it_streams, "to have torch.float16 ones", "streamed-model-moved"),
]


@pytest.mark.parametrize(("mistake", "words", "code"), MISTAKES)
def test_what_a_stream_cannot_follow_is_told(
    mistake: Callable[[Path], None], words: str, code: str, tmp_path: Path
) -> None:
    with pytest.raises(OpenwaferError, match=words) as raised:
        mistake(tmp_path)
    [told] = raised.value.diagnostics
    assert (told.code, bool(told.help)) == (code, True)


def test_a_trainer_goes_on_after_its_stream_is_closed(tmp_path: Path) -> None:
    trainer = streamed(arguments(tmp_path, max_steps=1))
    trainer.train()
    trainer.streamed.close()
    trainer.model.resize_token_embeddings(VOCABULARY + 8)
    assert trainer.evaluate()["eval_loss"] > 0
