"""How good the model of a run on Python sources is: its held-out loss, and texts that parse.

The loss is told in nats a token and in bits a byte, as tokens of a larger vocabulary are harder to
guess and fewer. Texts are cut at their last whole statement, and count where ``ast.parse`` takes
what is left of them; where less than half is left, a bracket or a string was never closed, and the
text does not count.
"""

import argparse
import ast
import io
import math
import tokenize
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path

from openwafer.cli.environment import restart_with_defaults
from openwafer.training.data import TokenDataset
from openwafer.training.session import Sampling, Session
from openwafer.training.session.building import open_saved_data
from openwafer.training.session.opened_model import held_out
from openwafer.training.session.saved_run import find_newest

PROMPTS = ("def __init__(self", "def main(", "class ", "import ", "def ", "if __name__ == ")
NUM_BATCHES = 16


def cut_at_statement(text: str) -> str:
    """The text up to the end of its last whole line of code, be it good Python or not."""
    ends = [0]
    try:
        # What begins a block is no whole statement.
        ends.extend(
            token.start[0]
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.NEWLINE and not token.line.rstrip().endswith(":")
        )
    except IndentationError:
        return text
    except tokenize.TokenError:
        # Something is not closed: what stands before it may be good.
        pass
    return "".join(text.splitlines(keepends=True)[: ends[-1]])


def parses(text: str) -> bool:
    """Whether a text is Python up to its last whole statement, and at least half of it is."""
    whole = text[: text.rfind("\n") + 1]
    cut = cut_at_statement(whole)
    if 2 * len(cut) < len(whole) or not cut:
        return False
    try:
        ast.parse(cut)
    except (SyntaxError, ValueError):
        return False
    return True


def bytes_a_token(dataset: TokenDataset) -> float:
    """Of the batches that an evaluation takes."""
    ids = [i for batch in islice(dataset.once(), NUM_BATCHES) for i in batch.input_ids.flatten()]
    return len(dataset.tokenizer.decode(list(map(int, ids))).encode()) / len(ids)


def opened(options: argparse.Namespace) -> Session:
    """The run that was named, or a demonstration that is trained for it."""
    if options.run is not None:
        return Session(options.run)
    with as_file(files("openwafer.cli") / "demo.yaml") as path:
        session = Session(path, ["name=samples", *options.overrides])
    session.train()
    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="of sources; by default the demonstration is run")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=4, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.4)
    parser.add_argument("--top-k", type=int, default=20)
    options = parser.parse_args()
    session = opened(options)
    texts = []
    for seed in range(options.seeds):
        sampling = Sampling(options.tokens, options.temperature, options.top_k, seed=seed)
        written = session.generate_all(PROMPTS, sampling).texts
        texts += [prompt + text for prompt, text in zip(PROMPTS, written, strict=True)]
    good = [parses(text) for text in texts]
    for text, is_good in zip(texts, good, strict=True):
        print("-" * 30, "parses" if is_good else "does not parse")
        print(text)
    saved = find_newest(session.folder)
    assert saved is not None
    per_token = bytes_a_token(held_out(open_saved_data(session.config, session.folder, saved)))
    loss = session.evaluate(NUM_BATCHES)
    print("-" * 30)
    print(f"held-out loss {loss:.3f} nats a token, {per_token:.2f} bytes a token")
    print(f"{loss / math.log(2) / per_token:.3f} bits a byte")
    print(f"{sum(good)} of {len(good)} texts parse")


if __name__ == "__main__":
    restart_with_defaults()
    main()
