"""The demonstration: a model larger than its device, from sources to a report."""

from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from openwafer.cli.places import free_name
from openwafer.diagnostics import counted
from openwafer.training.metrics import RunRecord, load_run
from openwafer.training.metrics.report import write_report
from openwafer.training.metrics.step_lines import measured_peaks
from openwafer.training.metrics.units import format_bytes
from openwafer.training.session import Sampling, Session
from openwafer.training.session.constrained import (
    can_become_python,
    num_statements,
    whole_program,
)
from openwafer.training.session.opened_model import GeneratedTexts

NAME = "demo"
PROMPT = "class Reader:\n    def __init__(self"
# With the prompt no more than the model sees, so that keys and values of all tokens are kept.
SAMPLING = Sampling(max_new_tokens=110, temperature=0.4, top_k=20, constraint=can_become_python)
# What processors say that multiply bf16, as torch.cpu.get_capabilities names it.
BF16_UNITS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
# Elsewhere bf16 takes longer than fp32, and a step of torch's Muon, which multiplies in it, 10 s.
WITHOUT_UNITS = (
    "precision=fp32",
    "optimizer.name=adamw",
    "optimizer.learning_rate=1e-3",
    "optimizer.options={betas: [0.9, 0.95]}",
)


def run_demo(folder: Path, overrides: Sequence[str] = ()) -> None:
    """Train, sample, export, load the export with transformers, and write the report."""
    console = Console()
    with as_file(files("openwafer.cli") / "demo.yaml") as path:
        own = [f"folder={folder}", f"name={free_name(folder, NAME)}"]
        session = Session(path, [*own, *by_processor(torch.cpu.get_capabilities()), *overrides])
    run = session.folder.path
    console.print("training a transformer on the sources of Python's own library\n")
    result = session.train()
    if not result.is_complete:
        console.print(f"ended early; go on with: openwafer resume {run}", highlight=False)
        return
    written = session.generate_all([PROMPT], SAMPLING)
    session.keep_sample(PROMPT, written.texts[0], written.step)
    _show_sample(written, console)
    exported = session.export(run / "exported")
    _load(exported, console)
    session.count_plain_loop()
    report = write_report(run)
    _sum_up(load_run(run), console)
    for name, place in (
        ("report", report),
        ("model", exported),
        ("checkpoint", result.checkpoint),
        ("trace", f"{run / 'trace.json'}, for https://ui.perfetto.dev"),
    ):
        console.print(f"{name:<12} {place}", highlight=False, soft_wrap=True)


def by_processor(capabilities: Mapping[str, object]) -> tuple[str, ...]:
    """Settings of the demonstration for a processor, of whose units torch tells the names."""
    has_units = any(capabilities.get(unit) for unit in BF16_UNITS)
    return ("precision=bf16",) if has_units else WITHOUT_UNITS


def _show_sample(written: GeneratedTexts, console: Console) -> None:
    """Show the lines of a text that are a program, and by what they were constrained."""
    text = PROMPT + written.texts[0]
    program = whole_program(text)
    console.rule("what the model writes")
    console.print((program or text).rstrip(), markup=False, highlight=False, soft_wrap=True)
    console.rule(
        f"{counted(num_statements(program), 'statement')} beside strings, as Python reads it"
        if program
        else "no whole program for Python"
    )
    console.print(
        f"constrained to what Python can read, with strings and brackets closed: "
        f"{counted(written.num_refused[0], 'token')} refused\n",
        highlight=False,
        soft_wrap=True,
    )


def _load(exported: Path, console: Console) -> None:
    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode(PROMPT)])).logits
    expected = tokenizer.decode([int(logits[0, -1].argmax())])
    console.print(
        f"AutoModelForCausalLM.from_pretrained loads it as {type(model).__name__}, "
        f"{model.num_parameters():,} parameters; after {PROMPT!r} it expects {expected!r}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _sum_up(run: RunRecord, console: Console) -> None:
    plain_bytes = run.plan.plain_loop_bytes
    assert plain_bytes is not None
    weights = sum(layer.weights_bytes for layer in run.plan.layers)
    states = sum(layer.states_bytes for layer in run.plan.layers)
    rows = run.metrics.rows
    most_held = max(measured_peaks(rows).values())
    losses = f"loss {rows[0].loss:.2f} to {rows[-1].loss:.2f}"
    if run.validation is not None:
        losses += f", {run.validation.rows[-1].loss:.2f} on held-out text"
    console.print(
        f"{format_bytes(weights)} of weights and {format_bytes(states)} of optimizer state "
        f"trained on a device of {format_bytes(run.plan.device_budget_bytes)}, which held "
        f"{format_bytes(most_held)} at most, where the plain loop needs "
        f"{format_bytes(plain_bytes)}; {losses}\n",
        highlight=False,
        soft_wrap=True,
    )
