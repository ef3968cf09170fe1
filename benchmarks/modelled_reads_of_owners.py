"""How near N disks, read in the order of a pass, come to N times the rate of one: in a model.

Records are dealt as a run deals them. Each disk reads its own in the order of forward and backward
passes, ahead as far as its ring has room; a record leaves the ring when all before it have been
used, and so has it. Nothing else takes time. See ``bench_reads_of_owners.py`` for real ones.

    python benchmarks/modelled_reads_of_owners.py
"""

from collections.abc import Sequence

import torch

from openwafer.training.store.layout import ArraySpec, lay_out
from openwafer.training.stream.replicas.ownership import StoreSystems, owners_of

NUM_LAYERS = 96
NUM_PASSES = 40
SYSTEMS = (1, 2, 4, 8, 16)
# Of whole pages, which records are laid out in.
LAYER_ELEMENTS = 1024


def share_of_rate(sizes: Sequence[int], num_disks: int, ring_records: int) -> float:
    """The rate of the disks together, in that of one times their number.

    Args:
        sizes: of records, in the order of forward, in layers.
        num_disks: of which each reads a layer in a unit of time.
        ring_records: room of each disk's ring, in the largest of its records.
    """
    specs = [ArraySpec(str(n), torch.float32, (LAYER_ELEMENTS * s,)) for n, s in enumerate(sizes)]
    layouts = {spec.name: lay_out(spec.name, [spec], [], []) for spec in specs}
    owners = owners_of(layouts, num_disks, StoreSystems.ALL)
    passes = [range(len(sizes)), range(len(sizes) - 1, -1, -1)] * (NUM_PASSES // 2)
    # Of what each disk has read: sizes, and when they were read and used.
    read: list[list[tuple[int, float, float]]] = [[] for _ in range(num_disks)]
    rings = [
        ring_records * max((s for n, s in enumerate(sizes) if owners[str(n)] == disk), default=0)
        for disk in range(num_disks)
    ]
    now = 0.0
    for record in (record for one in passes for record in one):
        size, disk = sizes[record], owners[str(record)]
        before = read[disk]
        room, begin = rings[disk] - size, before[-1][1] if before else 0.0
        for earlier, _, used in reversed(before):
            room -= earlier
            if room < 0:
                begin = max(begin, used)
                break
        now = max(now, begin + size)
        before.append((size, begin + size, now))
    return NUM_PASSES * sum(sizes) / now / num_disks


def main() -> None:
    """Print a table of Markdown."""
    print("| largest layer | ring | " + " | ".join(f"N = {n}" for n in SYSTEMS) + " |")
    for largest in (1, 2, 8, 24):
        for ring_records in (3, 1):
            sizes = [largest] + [1] * NUM_LAYERS
            shares = [f"{share_of_rate(sizes, n, ring_records):.2f}" for n in SYSTEMS]
            print(f"| {largest} | {ring_records} | " + " | ".join(shares) + " |")


if __name__ == "__main__":
    main()
