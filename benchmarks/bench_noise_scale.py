"""What the gradient noise scale costs, and whether normalisation layers tell that of all layers.

The cost is the processor time of a step of a plain loop that measures, beside one that does not,
in turns. For the second question a small GPT trains on text, and signal and noise of all weights
and of the normalisation layers' weights are smoothed and compared step by step.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from openwafer.training.data import (
    DataConfig,
    DataSource,
    Sampling,
    SourceKind,
    TokenizerTraining,
    prepare,
)
from openwafer.training.models import GptConfig, ReferenceGpt
from openwafer.training.noise_scale import (
    ExampleNorms,
    NoiseEstimate,
    PerExampleNorms,
    SmoothedNoise,
    Watched,
    estimate_from_examples,
)

DECAY = 0.95
WARM_UP_STEPS = 20
WAYS = {"plain": None, "norms": Watched.NORMS, "all": Watched.ALL}


def estimate(model: ReferenceGpt, examples: ExampleNorms, names: list[str]) -> NoiseEstimate:
    """Signal and noise of some weights."""
    gradients = dict(model.named_parameters())
    squares = [gradients[name].grad.square().sum() for name in names]
    parts = examples.total(names)
    return estimate_from_examples(parts.sum().item(), torch.stack(squares).sum().item(), len(parts))


def step(
    model: ReferenceGpt,
    optimizer: torch.optim.Optimizer,
    ids_BT: torch.Tensor,
    norms: PerExampleNorms | None,
) -> ExampleNorms | None:
    """One step of a plain loop, with the gradients kept."""
    optimizer.zero_grad()
    examples = None
    if norms is None:
        loss = model(ids_BT, labels=ids_BT).loss
    else:
        with norms.measuring() as examples:
            loss = model(ids_BT, labels=ids_BT).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    if norms is not None and examples is not None:
        estimate(model, examples, list(norms.names))
    optimizer.step()
    return examples


def measure_cost(options: argparse.Namespace) -> None:
    """Print processor seconds of a step of each way, medians over rounds that take turns."""
    # Threads that wait for each other would be counted as work.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GptConfig(
        vocab_size=8192,
        context_length=options.tokens,
        hidden_size=options.width,
        num_layers=options.layers,
        num_heads=options.width // 64,
    )
    model = ReferenceGpt(config)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids_BT = torch.randint(0, 8192, (options.batch, options.tokens))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for round_number in range(options.rounds + 1):
        for way, watched in WAYS.items():
            norms = None if watched is None else PerExampleNorms(model, options.batch, watched)
            begin = time.process_time()
            step(model, optimizer, ids_BT, norms)
            if round_number:
                seconds[way].append(time.process_time() - begin)
            if norms is not None:
                norms.close()
    for way, found in seconds.items():
        shares = [one / plain - 1 for one, plain in zip(found, seconds["plain"], strict=True)]
        low, middle, high = statistics.quantiles(shares, n=4)
        print(
            f"{way}: {statistics.median(found):.3f} s a step, over plain {middle:+.1%} "
            f"(quartiles {low:+.1%}, {high:+.1%})"
        )


def text_batches(options: argparse.Namespace, folder: Path) -> tuple[int, list[torch.Tensor]]:
    """Tokens of Python's standard library, a batch a step."""
    config = DataConfig(
        DataSource(SourceKind.STANDARD_LIBRARY),
        TokenizerTraining(1024),
        Sampling(128, options.batch),
    )
    dataset = prepare(config, folder)
    batches = [dataset.micro_batches(number, 1)[0].input_ids for number in range(options.steps)]
    return dataset.tokenizer.vocab_size, batches


def compare(options: argparse.Namespace) -> None:
    """Print how the smoothed noise scale of normalisation layers goes with that of all weights."""
    with tempfile.TemporaryDirectory() as folder:
        vocab_size, batches = text_batches(options, Path(folder))
    torch.manual_seed(0)
    model = ReferenceGpt(
        GptConfig(
            vocab_size=vocab_size, context_length=128, hidden_size=128, num_layers=4, num_heads=4
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, fused=True)
    norms = PerExampleNorms(model, options.batch, Watched.ALL)
    vectors = [name for name in norms.names if "norm" in name]
    total, cheap = SmoothedNoise(DECAY), SmoothedNoise(DECAY)
    found: list[tuple[float, float]] = []
    for number, ids_BT in enumerate(batches):
        examples = step(model, optimizer, ids_BT, norms)
        assert examples is not None
        total.add(estimate(model, examples, list(norms.names)))
        cheap.add(estimate(model, examples, vectors))
        pair = total.noise_scale, cheap.noise_scale
        if number >= WARM_UP_STEPS and pair[0] and pair[1]:
            found.append((pair[0], pair[1]))
        if number % 50 == 49:
            print(f"step {number + 1}: all {pair[0] or 0:.1f}, norms {pair[1] or 0:.1f} samples")
    show_agreement(np.log(np.array(found)))


def show_agreement(logs_S2: np.ndarray) -> None:
    """Print correlation and ratio, of logarithms of all and of normalisation layers, (S, 2)."""
    ratio = logs_S2[:, 1] - logs_S2[:, 0]
    correlation = np.corrcoef(logs_S2.T)[0, 1]
    low, middle, high = np.exp(np.quantile(ratio, [0.1, 0.5, 0.9]))
    print(
        f"{len(logs_S2)} steps: correlation of logarithms {correlation:.3f}, norms over all "
        f"{middle:.2f} (from {low:.2f} to {high:.2f} in 80% of the steps)"
    )


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    if options.rounds:
        measure_cost(options)
    if options.steps:
        compare(options)


if __name__ == "__main__":
    main()
