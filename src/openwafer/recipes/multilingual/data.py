"""What Django says in English and in Arabic: its messages and their translations."""

import gettext
from collections.abc import Iterator, Mapping
from pathlib import Path

from openwafer.recipes.packages import folder_of

BETWEEN = "\n\n"


def make(folder: Path) -> None:
    """Write english.txt and arabic.txt, a message a document."""
    messages = dict(sorted(_messages("ar")))
    for name, texts in (("english", messages.keys()), ("arabic", messages.values())):
        (folder / f"{name}.txt").write_text(BETWEEN.join(texts), "utf-8")


def _messages(language: str) -> Iterator[tuple[str, str]]:
    for path in folder_of("django").rglob(f"locale/{language}/LC_MESSAGES/*.mo"):
        with path.open("rb") as file:
            # Its public methods translate one message, and list none.
            catalog: Mapping[str | tuple[str, int], str] = vars(gettext.GNUTranslations(file))[
                "_catalog"
            ]
        for message, translation in catalog.items():
            if isinstance(message, str) and message and translation:
                yield message, translation
