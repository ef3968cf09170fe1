"""Plants faults one after the other, and says which of the default tests finds each.

    python scripts/plant_faults.py --wing sdk --only full-queue snapshot
    python scripts/plant_faults.py --tree path/to/another/checkout

Ends with 1 where a fault is not found.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.planted.fault import MisfitError
from tests.planted.planting import search
from tests.planted.sdk_faults import SDK_FAULTS
from tests.planted.training_faults import TRAINING_FAULTS

ROOT = Path(__file__).parents[1]
FAULTS = {"training": TRAINING_FAULTS, "sdk": SDK_FAULTS}


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults alone")
    parser.add_argument("--wing", choices=FAULTS, help="faults of one wing")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose source and tests are taken")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each fault")
    return parser.parse_args()


def main() -> int:
    """Plant the chosen faults; a table of all stands at the end."""
    chosen = arguments()
    faults = [
        fault
        for wing, of_wing in FAULTS.items()
        for fault in of_wing
        if chosen.wing in (None, wing) and fault.name in (chosen.only or [fault.name])
    ]
    lines, missed = [], 0
    for fault in faults:
        try:
            found = search(fault, chosen.tree.resolve(), chosen.limit)
        except MisfitError as misfit:
            found = misfit
        missed += not getattr(found, "found_by", "")
        lines.append(f"| {fault.name} | {fault.kind} | {found} |")
        print(lines[-1], flush=True)
    print("\n| fault | kind | found by |\n|---|---|---|", *lines, sep="\n")
    print(f"\n{len(faults) - missed} of {len(faults)} found")
    return int(missed > 0 or not faults)


if __name__ == "__main__":
    sys.exit(main())
