"""One set of native functions for all images of a program: equal functions are compiled once.

Images of a program are mostly alike. Two functions are the same when their texts are, but for the
names of what they call, and when what they call is the same in turn: the coarsest partition with
that property, found by refining the partition by texts until nothing more comes apart.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.codegen.modules import RUN, SUPPORT, ModuleText

_NAME: Final = re.compile(r'@"pe\.[^"]*"|@entry\.\d+|@image_run\b')
_SHARED_NAME: Final = re.compile(r"@f\.[0-9a-f]+")
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True)
class ProgramText:
    """LLVM modules that are linked into one library.

    Attributes:
        straight: entries of images, and functions that no loop reaches.
        loops: functions with loops, and what these call.
        kernels: vector operations, each a module of its own: many programs share them.
        runs: for each image, the name of the function that runs its entries.
    """

    straight: str
    loops: str
    kernels: tuple[str, ...]
    runs: tuple[str, ...]


def program_text(modules: Sequence[ModuleText]) -> ProgramText:
    """LLVM text of images, in the order of their numbers."""
    names = _names([module.functions for module in modules])
    texts: dict[str, str] = {}
    in_loops: set[str] = set()
    for module, own in zip(modules, names, strict=True):
        in_loops.update(own[name] for name in module.in_loops)
        for name, text in module.functions.items():
            if own[name] not in texts:
                texts[own[name]] = _NAME.sub(lambda found, own=own: own[found[0]], text)  # type: ignore[misc]
    kernels = {kernel: text for module in modules for kernel, text in module.kernels.items()}
    return ProgramText(
        _group(texts, kernels, texts.keys() - in_loops),
        _group(texts, kernels, in_loops),
        tuple(f"{SUPPORT}\n{text}" for text in kernels.values()),
        tuple(own[f"@{RUN}"].removeprefix("@") for own in names),
    )


def _names(images: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """For each image, what its functions are called in the program; equal ones have one name."""
    called = [
        {name: _NAME.findall(text) for name, text in functions.items()} for functions in images
    ]
    names = [
        {name: _digest(_NAME.sub("@", text)) for name, text in functions.items()}
        for functions in images
    ]
    count = 0
    while count < (count := len({name for own in names for name in own.values()})):
        names = [
            {name: _digest(own[name], *(own[callee] for callee in callees[name])) for name in own}
            for own, callees in zip(names, called, strict=True)
        ]
    return [{name: f"@f.{digest}" for name, digest in own.items()} for own in names]


def _digest(*texts: str) -> str:
    whole = "\0".join(texts)
    return hashlib.blake2b(whole.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _group(texts: Mapping[str, str], kernels: Mapping[str, str], chosen: set[str]) -> str:
    """Functions that are compiled together; others that they call are declared."""
    bodies = [text for name, text in texts.items() if name in chosen]
    called = {name: None for text in bodies for name in _SHARED_NAME.findall(text)}
    heads = (texts[name].partition(" {\n")[0] for name in called if name not in chosen)
    declarations = (f"{head.replace('define', 'declare', 1)}\n" for head in heads)
    return "\n".join([SUPPORT, *kernels, *declarations, *bodies])
