"""The page: as the server gives it, and as one file that needs nothing beside it."""

import base64
import json
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from openwafer.atomic_file import write_bytes, write_text
from openwafer.diagnostics import error
from openwafer.view.shown import Shown

PAGE: Final = files("openwafer.view") / "page"
MODULES: Final = (
    "columns", "debug", "fabric", "keys", "live", "main", "memory", "search", "source", "state",
    "timeline", "traces", "words",
)  # fmt: skip
"""Names by which the page's modules import each other."""
_TEMPLATES: Final = Environment(
    loader=PackageLoader("openwafer.view", "page"), autoescape=True, undefined=StrictUndefined
)


def text_of(name: str) -> str:
    """The text of a file of the page."""
    return (PAGE / name).read_text(encoding="utf-8")


def page(
    modules: dict[str, str],
    nonce: str,
    data: str = "",
    report: str | None = None,
    live: int | None = None,
    doing: str = "",
) -> str:
    """The text of the page.

    Args:
        modules: address of each module.
        nonce: that its own script and style carry.
        data: columns, deflated and as base64; empty where the page asks a server.
        report: a page that is shown in it; None for none.
        live: version of what is shown of a run that goes on; None for one that is over.
        doing: what is done meanwhile.
    """
    return _TEMPLATES.get_template("index.html").render(
        imports=json.dumps({"imports": {f"#{name}": to for name, to in modules.items()}}),
        style=text_of("style.css"),
        nonce=nonce,
        data=data,
        report=report,
        live=live,
        doing=doing,
    )


def export(run: Shown, path: Path) -> None:
    """Write what is shown to a file: ``.html``, a page by itself, or ``.view``, its columns.

    Raises OpenwaferError for another name, OSError where the disk refuses.
    """
    content = run.content.read_bytes() if isinstance(run.content, Path) else run.content
    match path.suffix:
        case ".view":
            write_bytes(path, content)
        case ".html":
            modules = {name: _inlined(text_of(f"{name}.js")) for name in MODULES}
            data = base64.b64encode(zlib.compress(content, 6)).decode()
            write_text(path, page(modules, "export", data, run.report))
        case _:
            raise error(
                "view-form",
                f"the name of {path} does not say what is exported",
                help="end it with .html for a page by itself, .view for its columns",
            )


def _inlined(text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"
