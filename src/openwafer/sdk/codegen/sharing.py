"""One set of native functions for all images of a program: equal functions are compiled once.

Images of a program are mostly alike. Two functions are of one class when their texts are, but for
the names of what they call: the class is compiled once. Where its callee is of one class in every
image, it is called by name; where images differ, by the image's table of links, which travels with
every call. So in an image the callees must follow from the class: a class with members in one image
that call different classes comes apart by what is called, until there is none.
"""

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.codegen.modules import RUN, SUPPORT, ModuleText

_NAME: Final = re.compile(r'@"pe\.[^"]*"|@entry\.\d+|@image_run\b')
_CALL: Final = re.compile(rf"(?m)^(  (%v\d+) = call [^@\n]*?)({_NAME.pattern})")
_SHARED_NAME: Final = re.compile(r"@f\.[0-9a-f]+")
_DIGEST_BYTES: Final = 16

_Classes = dict[str, str]
"""Of an image: the class of each function's name, which is the name in the program."""


@dataclass(frozen=True)
class Way:
    """How code of an image is started.

    Attributes:
        run: name of the function that runs its entries.
        links: name of its table of links; empty where it needs none.
    """

    run: str
    links: str = ""


@dataclass(frozen=True)
class ProgramText:
    """LLVM modules that are linked into one library.

    Attributes:
        straight: entries of images, and functions that no loop reaches; tables of links.
        loops: functions with loops, and what these call.
        kernels: vector operations, each a module of its own: many programs share them.
        ways: into each image.
    """

    straight: str
    loops: str
    kernels: tuple[str, ...]
    ways: tuple[Way, ...]


def program_text(modules: Sequence[ModuleText]) -> ProgramText:
    """LLVM text of images, in the order of their numbers."""
    images = [module.functions for module in modules]
    classes = _classes(images)
    links = _links(images, classes)
    texts: dict[str, str] = {}
    in_loops: set[str] = set()
    for module, own in zip(modules, classes, strict=True):
        in_loops.update(own[name] for name in module.in_loops)
        for name, text in module.functions.items():
            if own[name] not in texts:
                texts[own[name]] = _renamed(text, own, links)
    tables = [_table(image, own, links) for image, own in zip(images, classes, strict=True)]
    names = {table: f"links.{number}" for number, table in enumerate(dict.fromkeys(tables))}
    data = [f"@{name} = constant {table}" for table, name in names.items() if links]
    kernels = {kernel: text for module in modules for kernel, text in module.kernels.items()}
    ways = (
        Way(own[f"@{RUN}"].removeprefix("@"), names[table] if links else "")
        for own, table in zip(classes, tables, strict=True)
    )
    return ProgramText(
        _group(texts, kernels, texts.keys() - in_loops, data),
        _group(texts, kernels, in_loops),
        tuple(f"{SUPPORT}\n{text}" for text in kernels.values()),
        tuple(ways),
    )


@functools.lru_cache(maxsize=1 << 14)
def _shape(text: str) -> tuple[str, tuple[str, ...]]:
    """A text's digest without names, and the names, each once, in the order of the text."""
    names = tuple(dict.fromkeys(_NAME.findall(text)))
    numbers = {name: f"@{number}" for number, name in enumerate(names)}
    return _digest(_NAME.sub(lambda found: numbers[found[0]], text)), names


def _classes(images: Sequence[Mapping[str, str]]) -> list[_Classes]:
    """For each image the classes of its functions."""
    shapes = [{name: _shape(text) for name, text in image.items()} for image in images]
    classes = [{name: f"@f.{digest}" for name, (digest, _) in own.items()} for own in shapes]
    callees = [{name: names for name, (_, names) in own.items()} for own in shapes]
    while True:
        apart = {
            one
            for own, called in zip(classes, callees, strict=True)
            for one in _ambiguous(own, called)
        }
        if not apart:
            return classes
        classes = [
            {
                name: f"@f.{_digest(one, *_called(own, called[name]))}" if one in apart else one
                for name, one in own.items()
            }
            for own, called in zip(classes, callees, strict=True)
        ]


def _ambiguous(own: _Classes, callees: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Classes of an image whose members call different classes."""
    seen: dict[str, tuple[str, ...]] = {}
    for name, one in own.items():
        if seen.setdefault(one, _called(own, callees[name])) != _called(own, callees[name]):
            yield one


def _called(own: _Classes, names: tuple[str, ...]) -> tuple[str, ...]:
    """Classes of what a function calls; its own name comes first and tells nothing."""
    return tuple("" if name == names[0] else own[name] for name in names)


def _links(
    images: Sequence[Mapping[str, str]], classes: Sequence[_Classes]
) -> dict[tuple[str, int], int]:
    """Places in the tables of links, by class and by number of a name in its shape."""
    found: dict[tuple[str, int], str] = {}
    links: dict[tuple[str, int], int] = {}
    for image, own in zip(images, classes, strict=True):
        for name, text in image.items():
            for number, callee in enumerate(_called(own, _shape(text)[1])):
                key = (own[name], number)
                if found.setdefault(key, callee) != callee:
                    links.setdefault(key, len(links))
    return links


def _table(image: Mapping[str, str], own: _Classes, links: Mapping[tuple[str, int], int]) -> str:
    """LLVM text of an image's links: what they lead to, nowhere where it has no such call."""
    targets = ["null"] * len(links)
    for name, text in image.items():
        for number, callee in enumerate(_shape(text)[1]):
            place = links.get((own[name], number))
            if place is not None:
                targets[place] = own[callee]
    return f"[{len(targets)} x ptr] [{', '.join(f'ptr {target}' for target in targets)}]"


def _renamed(text: str, own: _Classes, links: Mapping[tuple[str, int], int]) -> str:
    """The text of a class: names of the program, and calls by links."""
    head = own[_shape(text)[1][0]]
    places = {name: links.get((head, n)) for n, name in enumerate(_shape(text)[1])}

    def call(found: re.Match[str]) -> str:
        place, value = places[found[3]], found[2]
        if place is None:
            return found[0]
        return (
            f"  {value}.link = getelementptr ptr, ptr %links, i64 {place}\n"
            f"  {value}.callee = load ptr, ptr {value}.link\n"
            f"{found[1]}{value}.callee"
        )

    return _NAME.sub(lambda found: own[found[0]], _CALL.sub(call, text))


def _digest(*texts: str) -> str:
    whole = "\0".join(texts)
    return hashlib.blake2b(whole.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _group(
    texts: Mapping[str, str], kernels: Mapping[str, str], chosen: set[str], data: Sequence[str] = ()
) -> str:
    """Functions that are compiled as one module, with data; others that they name are declared."""
    bodies = [*data, *(text for name, text in texts.items() if name in chosen)]
    called = {name: None for text in bodies for name in _SHARED_NAME.findall(text)}
    heads = (texts[name].partition(" {\n")[0] for name in called if name not in chosen)
    declarations = (f"{head.replace('define', 'declare', 1)}\n" for head in heads)
    return "\n".join([SUPPORT, *kernels, *declarations, *bodies])
