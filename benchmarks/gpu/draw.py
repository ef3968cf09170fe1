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
    speed.set(xlabel="tokens a step", ylabel="share of the plain loop's speed", ylim=(0, 1.1))
    speed.set_title("streamed beside resident")
    speed.axhline(0.95, color="grey", linestyle=":")
    if shares := figures.get("throughput"):
        speed.semilogx(shares["tokens"], shares["shares"], "o-")
    memory.set(xlabel="layers", ylabel="device memory, MiB", title="peak by depth")
    if peaks := figures.get("depth"):
        memory.plot(peaks["layers"], [peak / 2**20 for peak in peaks["peak_bytes"]], "o-")
        memory.set_ylim(0, 1.1 * max(peaks["peak_bytes"]) / 2**20)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main()
