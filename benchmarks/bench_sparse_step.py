"""A whole training step of a GPT with sparse weights beside the dense one, and what they store.

All are resident and in fp32; steps alternate in one process. The dense step is that of torch's own
products, and once more with `torch.set_float32_matmul_precision("medium")`, which hands them to
oneDNN: in fp32 or, where the processor can, with factors rounded to bf16. The first line says it.

    python benchmarks/bench_sparse_step.py --sparsity 0.75 0.9 0.95 --threads 1 2
"""

import argparse
import gc
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from openwafer.training.metrics.run_record import name_processor
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from openwafer.training.session import MatmulPrecision
from openwafer.training.session.matmul_precision import product_rate
from openwafer.training.sparsity.kernels.processor import peak_flops
from openwafer.training.sparsity.masks.one_shot import InitMethod, initial_mask
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.products import Products

STATE_BYTES = 8
"""Two of AdamW, in fp32, for each weight."""


def build(config: GptConfig, sparsity: float | None, products: Products) -> nn.Module:
    """The model; its hidden matrices are sparse unless told otherwise."""
    torch.manual_seed(0)
    model = ReferenceGpt(config)
    if sparsity is None:
        return model
    masks = {
        name: initial_mask(InitMethod.RANDOM, weight.detach(), sparsity, name, 0)
        for name, weight in model.named_parameters()
        if weight.ndim == 2 and name.startswith("layers.")
    }
    kept = {name: int(mask.sum()) for name, mask in masks.items()}
    pack_linears(model, kept, lambda name, weight: masks[name], products)
    return model


def step_of(model: nn.Module, tokens: torch.Tensor) -> Callable[[], None]:
    """A training step with AdamW."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_medium(step: Callable[[], None]) -> Callable[[], None]:
    """The same with products of medium precision."""

    def medium_step() -> None:
        torch.set_float32_matmul_precision("medium")
        try:
            step()
        finally:
            torch.set_float32_matmul_precision("highest")

    return medium_step


def describe_machine() -> str:
    """The processor, its peak, and what dense products reach on one thread."""
    peak, rates = peak_flops(), {level: product_rate(level) for level in MatmulPrecision}
    reached = ", ".join(
        f"{level} {rate.flops / 1e9:.0f} ({rate.flops / peak:.0%} of it, off by {rate.off:.0e})"
        for level, rate in rates.items()
    )
    return f"{name_processor()}, FMA peak {peak / 1e9:.0f} GFLOP/s a thread; dense: {reached}"


def seconds_of(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Medians, in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if number:
                times[name].append(time.perf_counter() - started)
    return {name: median(found) for name, found in times.items()}


def stored_bytes(model: nn.Module) -> int:
    """What the store keeps of hidden matrices: values, states, patterns."""
    return sum(
        parameter.nbytes + (STATE_BYTES * parameter.numel() if parameter.requires_grad else 0)
        for name, parameter in model.named_parameters()
        if name.startswith("layers.") and "norm" not in name
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs=2, default=[4, 512], help="samples, length")
    parser.add_argument("--sparsity", type=float, nargs="*", default=[0.75, 0.9, 0.95])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    samples, length = given.tokens
    config = GptConfig(
        vocab_size=2048,
        context_length=length,
        hidden_size=given.hidden,
        num_layers=given.layers,
        num_heads=given.hidden // 64,
    )
    tokens = torch.randint(0, config.vocab_size or 1, (samples, length))
    print(describe_machine())
    print(
        "| zeros | threads | dense s | medium s | spread out | skipping | beside medium | stored |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for sparsity in given.sparsity:
        for threads in given.threads:
            torch.set_num_threads(threads)
            models = {
                "dense": build(config, None, Products.AUTO),
                "spread": build(config, sparsity, Products.DENSE),
                "skipping": build(config, sparsity, Products.SPARSE),
            }
            steps = {name: step_of(model, tokens) for name, model in models.items()}
            steps["medium"] = by_medium(steps["dense"])
            took = seconds_of(steps, given.rounds)
            weights = stored_bytes(models["dense"]) / (4 + STATE_BYTES)
            print(
                f"| {sparsity:g} | {threads} | {took['dense']:.2f} | {took['medium']:.2f} |"
                f" {took['dense'] / took['spread']:.2f} | {took['dense'] / took['skipping']:.2f} |"
                f" {took['medium'] / took['skipping']:.2f} |"
                f" {stored_bytes(models['skipping']) / weights:.3f} |",
                flush=True,
            )
            models.clear()
            steps.clear()
            gc.collect()


if __name__ == "__main__":
    main()
