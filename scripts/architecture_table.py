"""Writes docs/guide/architectures.md, the list of what the table of architectures trains."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from openwafer import atomic_file
from tests.training.stream_architectures.page import PAGE, page

if __name__ == "__main__":
    atomic_file.write_text(PAGE, page())
