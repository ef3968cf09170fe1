"""Stop a process that saves a checkpoint, at each of its calls to the file system in turn.

Run as a script, it prints what it found. The saved checkpoint replaces one of the same step, or is
new; every time either the old content or the new one must be there, and can be replaced again.
"""

import os
import shutil
import sys
from itertools import count
from pathlib import Path

from openwafer.training.store.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from openwafer.training.store.parameter_store import ParameterStore, Tier
from tests.training.store.example_records import differing_parts, make_store, write_step

CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
EARLIER, LATER, AGAIN = 1, 2, 3
STEP = 7


def store_with(content: int) -> ParameterStore:
    """A store in DRAM with the bytes of a number."""
    store = make_store(None, tier=Tier.DRAM, num_records=2)
    write_step(store, content)
    return store


def content_of(folder: Path) -> list[int]:
    """The numbers whose bytes the checkpoints of a folder hold."""
    found = []
    for checkpoint in list_checkpoints(folder):
        store = store_with(0)
        load_checkpoint(checkpoint, store)
        found += [n for n in (EARLIER, LATER, AGAIN) if not differing_parts(store, n)]
    return found


def is_saved_before(folder: Path, num_calls: int) -> bool:
    """Save in a process that ends before its call of that number; False when it did."""
    process = os.fork()
    if process == 0:
        store, calls = store_with(LATER), count()

        def stop(event: str, details: tuple[object, ...]) -> None:
            if event in CALLS and str(folder) in str(details[0]) and next(calls) == num_calls:
                os._exit(1)

        sys.addaudithook(stop)
        save_checkpoint(store, folder, STEP, {})
        os._exit(0)
    return os.waitpid(process, 0)[1] == 0


def check(folder: Path, allowed: list[list[int]], *, is_saved: bool) -> str:
    """What is wrong with a folder where a process was stopped."""
    found = content_of(folder)
    if found not in (allowed[-1:] if is_saved else allowed):
        return f"holds {found}, not one of {allowed}"
    again = save_checkpoint(store_with(AGAIN), folder, STEP, {})
    if content_of(folder) != [AGAIN]:
        return f"holds {content_of(folder)} after the next save"
    left = {path.name for path in again.iterdir()} - read_checkpoint(again).shards
    return "" if left == {"index.json"} and os.listdir(folder) == [again.name] else f"left {left}"


def main(folder: Path) -> None:
    """Stop at every call, once with a checkpoint to replace, once without."""
    save_checkpoint(store_with(EARLIER), folder / "earlier", STEP, {})
    (folder / "nothing").mkdir()
    for begin, allowed in {"earlier": [[EARLIER], [LATER]], "nothing": [[], [LATER]]}.items():
        for num_calls in count():
            place = folder / f"{begin}-{num_calls}"
            shutil.copytree(folder / begin, place)
            is_saved = is_saved_before(place, num_calls)
            if wrong := check(place, allowed, is_saved=is_saved):
                sys.stdout.write(f"{begin}, stopped before call {num_calls}: {wrong}\n")
            if is_saved:
                sys.stdout.write(f"{begin}: {num_calls} calls\n")
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
