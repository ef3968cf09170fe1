"""The Quran in Arabic, with its vowel signs, and in the English of A. Yusuf Ali."""

import csv
from pathlib import Path
from typing import Final

from openwafer.recipes.packages import folder_of

_BETWEEN: Final = "\n\n"


def make(folder: Path) -> None:
    """Write arabic.txt and english.txt, a verse a document."""
    for language in ("Arabic", "English"):
        table = folder_of("Quran_Module") / f"Quran_{language}.csv"
        with table.open(encoding="utf-8-sig", newline="") as file:
            verses = [row["AyahText"] for row in csv.DictReader(file)]
        (folder / f"{language.lower()}.txt").write_text(_BETWEEN.join(verses), "utf-8")
