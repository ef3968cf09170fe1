"""What Django says in English and in Arabic: its messages and their translations."""

import gettext
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

BETWEEN = "\n\n"


def make(folder: Path) -> None:
    """Write english.txt and arabic.txt, a message a document."""
    messages = dict(sorted(_messages("ar")))
    for name, texts in (("english", messages.keys()), ("arabic", messages.values())):
        (folder / f"{name}.txt").write_text(BETWEEN.join(texts), "utf-8")


def _messages(language: str) -> Iterator[tuple[str, str]]:
    spec = find_spec("django")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(spec.submodule_search_locations[0])
    for path in root.rglob(f"locale/{language}/LC_MESSAGES/*.mo"):
        with path.open("rb") as file:
            # Its public methods translate one message, and list none.
            catalog: Mapping[str | tuple[str, int], str] = vars(gettext.GNUTranslations(file))[
                "_catalog"
            ]
        for message, translation in catalog.items():
            if isinstance(message, str) and message and translation:
                yield message, translation
