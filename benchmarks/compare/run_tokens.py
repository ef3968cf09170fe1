"""The batches of the comparison: those that openwafer prepares for its run, for everybody."""

from dataclasses import asdict
from pathlib import Path

import torch
from system import BATCHES_FILE, Setup
from tokenizers import Tokenizer, models, pre_tokenizers
from workload import ADAMW, Workload

from openwafer.training.data import DataSource, SavedTokenizer, SourceKind
from openwafer.training.models import UserModule
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig
from openwafer.training.session.building import prepare_data
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    GroupConfig,
    OptimizerConfig,
    ScheduleConfig,
    StreamingConfig,
    TokensConfig,
    Weights,
)
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.stream.plan.placement import StoreTier

END_OF_TEXT = "<end>"


def run_of(setup: Setup) -> RunConfig:
    """The config of the run that trains the workload, streaming always.

    Without a cap it keeps activations as the other systems do, and has no key that a user could not
    write.
    """
    work = setup.workload
    decay = ADAMW["weight_decay"]
    return RunConfig(
        steps=1_000_000,
        data=TokensConfig(
            DataSource(SourceKind.TEXT, (str(setup.tokens / "text"),)),
            SavedTokenizer(setup.tokens / "tokenizer.json", END_OF_TEXT),
            validation_share=0.0,
            folder=setup.tokens / "prepared",
        ),
        name="run",
        folder=setup.folder,
        model=UserModule("workload:model_of", kwargs=asdict(work)),
        batch=BatchConfig(
            size=work.sequences,
            sequence_length=work.tokens_per_sequence,
            micro_batch_size=work.micro_batch,
        ),
        weights=Weights(work.weights),
        device_memory=setup.device_bytes or None,
        optimizer=OptimizerConfig(
            learning_rate=ADAMW["lr"],
            options={"betas": list(ADAMW["betas"]), "eps": ADAMW["eps"]},
            groups=(GroupConfig(("*",), weight_decay=decay),),
        ),
        schedule=ScheduleConfig("constant", options={"num_warm_up_steps": 0}),
        clip_norm=work.clip_norm,
        streaming=StreamingConfig(
            device=work.device,
            store=StoreTier(setup.tier),
            host_memory=setup.host_bytes or None,
            mode=Mode.STREAMED,
            activations=None if setup.device_bytes else Activations.KEEP,
        ),
        checkpoint=CheckpointConfig(every=1_000_000, at_end=False),
    )


def make_tokens(workload: Workload, folder: Path, num_steps: int) -> None:
    """Write a text of words, small ones more frequent, and the batches that a run makes of it."""
    (folder / "text").mkdir(parents=True)
    words = {**{str(i): i for i in range(workload.vocabulary - 1)}}
    words[END_OF_TEXT] = len(words)
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=END_OF_TEXT))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    generator = torch.Generator().manual_seed(workload.seed)
    drawn = torch.rand(num_steps, workload.tokens + 1, generator=generator) ** 4
    lines = (drawn * (workload.vocabulary - 1)).long().tolist()
    text = "\n".join(" ".join(map(str, line)) for line in lines)
    (folder / "text/words.txt").write_text(text)
    config = run_of(Setup(workload, folder, "dram", folder, 0))
    dataset = prepare_data(config, RunFolder(config.path), lambda _text: None)
    batches = [dataset.micro_batches(step, 1)[0] for step in range(num_steps)]
    assert all(torch.equal(batch.input_ids, batch.labels) for batch in batches)
    torch.save(torch.stack([batch.input_ids for batch in batches]), folder / BATCHES_FILE)
