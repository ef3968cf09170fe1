"""How far the best learning rate moves with the width of a model, under muP and without.

For each width and parametrization one `openwafer sweep` over learning rates, all on the sources of
Python's own library: the rates around the best one of the width before, and more until the best has
others on both sides. Then a table and a picture of the losses. Goes on where it ended.

    python benchmarks/learning_rate_transfer.py FOLDER --widths 64,128,256,512,1024 --seeds 3
"""

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

KEY = "optimizer.learning_rate"
BASE_WIDTH, HEAD_SIZE, MLP_RATIO = 64, 32, 2
FIRST_RATE = 4e-3
INIT_STD = 0.08
"""Of the base model; without muP it falls with the root of the width, as is usual."""
CONFIG = """\
steps: {steps}
model: {{hidden_size: 64, num_layers: 2, num_heads: 2, mlp_size: 128, context_length: 64}}
data:
  source: {{kind: standard-library}}
  tokenizer: {{vocab_size: 512}}
  validation_share: 0.02
  folder: {folder}/tokens
batch: {{size: 4, sequence_length: 64}}
optimizer: {{name: adamw, weight_decay: 0.1, options: {{betas: [0.9, 0.95]}}}}
schedule: {{name: cosine, options: {{final_factor: 0.1}}}}
evaluate: {{every: {steps}, batches: 128}}
"""
Losses = dict[tuple[str, int], dict[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--widths", default="64,128,256,512,1024")
    parser.add_argument("--neighbours", type=int, default=2, help="rates on each side of the best")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "proxy.yaml").write_text(CONFIG.format(steps=asked.steps, folder=folder))
    losses: Losses = {}
    for name in ("mup", "standard"):
        centre = FIRST_RATE
        for width in map(int, asked.widths.split(",")):
            # At the base width both are the same run, bit for bit.
            own = "mup" if width == BASE_WIDTH else name
            found = bracketed(folder, own, width, centre, (asked.neighbours, asked.seeds))
            losses[name, width] = found
            centre = best_of(found)
    tell(losses)
    if asked.picture is not None:
        draw(asked.picture, losses)


def bracketed(
    folder: Path, name: str, width: int, centre: float, extent: tuple[int, int]
) -> dict[float, float]:
    """Mean losses by rate, with so many rates on each side of the best one."""
    neighbours, seeds = extent
    while True:
        around = [centre * 2.0**step for step in range(-neighbours, neighbours + 1)]
        sweep(folder, name, width, ",".join(f"{rate:g}" for rate in around), seeds)
        found = read(folder / f"{name}-{width}" / "sweep.json")
        if best_of(found) == centre:
            return found
        centre = best_of(found)


def best_of(by_rate: dict[float, float]) -> float:
    return min(by_rate, key=lambda rate: by_rate[rate])


def vertex(by_rate: dict[float, float]) -> float:
    """Of the parabola over log rate through the best and its neighbours: where between the tried
    rates the best one lies."""
    best = best_of(by_rate)
    below, at, above = (by_rate[best * factor] for factor in (0.5, 1.0, 2.0))
    return best * 2.0 ** (0.5 * (below - above) / (below - 2 * at + above))


def sweep(folder: Path, name: str, width: int, rates: str, seeds: int) -> None:
    own = [
        f"model.hidden_size={width}",
        f"model.num_heads={width // HEAD_SIZE}",
        f"model.mlp_size={width * MLP_RATIO}",
        f"model.init_std={INIT_STD if name == 'mup' else INIT_STD * (BASE_WIDTH / width) ** 0.5}",
    ]
    if name == "mup":
        base = f"{{hidden_size: {BASE_WIDTH}, num_heads: 2, mlp_size: {BASE_WIDTH * MLP_RATIO}}}"
        own += ["parametrization=mup", f"base={base}"]
    command = [sys.executable, "-m", "openwafer", "sweep", str(folder / "proxy.yaml")]
    command += [word for value in own for word in ("--set", value)]
    command += ["--grid", f"{KEY}={rates}", "--seeds", str(seeds)]
    print(f"{name}, width {width}", flush=True)
    subprocess.run([*command, "--folder", str(folder / f"{name}-{width}")], check=True)


def read(path: Path) -> dict[float, float]:
    """Mean losses by learning rate; infinite where a run diverged."""
    runs: list[dict[str, Any]] = json.loads(path.read_text())["content"]["runs"]
    by_rate = defaultdict(list)
    for run in runs:
        loss = run["validation_loss"]
        by_rate[float(run["settings"][KEY])].append(math.inf if loss is None else loss)
    return {rate: fmean(found) for rate, found in sorted(by_rate.items())}


def tell(losses: Losses) -> None:
    for (name, width), by_rate in losses.items():
        row = "  ".join(f"{rate:g}: {loss:.3f}" for rate, loss in by_rate.items())
        print(f"{name:<9} {width:>5}  best {best_of(by_rate):g} ({vertex(by_rate):.2g})  {row}")


def draw(path: Path, losses: Losses) -> None:
    canvas = Figure(figsize=(10, 4), layout="constrained")
    panels: Any = canvas.subplots(1, 2, sharex=True, sharey=True)
    widths = sorted({width for _, width in losses})
    titles = {"mup": "muP", "standard": "standard parametrization"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for number, width in enumerate(widths):
            by_rate = losses[name, width]
            color = colormaps["viridis"](number / max(len(widths), 2))
            found = [loss if math.isfinite(loss) else math.nan for loss in by_rate.values()]
            axes.plot([*by_rate], found, "o-", color=color, ms=4, label=f"width {width}")
            best = best_of(by_rate)
            axes.plot([best], [by_rate[best]], "D", color="#cf5b3f", ms=7)
        axes.set(xscale="log", xlabel="learning rate", title=title)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("loss on held-out documents")
    canvas.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
