"""Draws gpu.json: draw.py gpu.json gpu.png."""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    record = json.loads(source.read_text())
    figures = {part["name"]: part["figures"] or {} for part in record["parts"]}
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(record["device"])
    speed, memory = figure.subplots(1, 2)
    shares = figures.get("throughput", {})
    speed.plot(shares.get("tokens", []), shares.get("shares", []), "o-")
    speed.axhline(0.95, color="grey", linestyle=":")
    speed.set(xscale="log", xlabel="tokens a step", ylabel="share of the plain loop's speed")
    speed.set(ylim=(0, 1.1), title="streamed beside resident")
    peaks = figures.get("depth", {})
    memory.plot(
        peaks.get("layers", []), [peak / 2**20 for peak in peaks.get("peak_bytes", [])], "o-"
    )
    memory.set(xlabel="layers", ylabel="device memory, MiB", title="peak by depth")
    memory.set_ylim(bottom=0)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main()
