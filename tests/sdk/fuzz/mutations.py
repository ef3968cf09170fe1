"""Texts that nobody would write: pieces of programs exchanged, doubled, left out or extreme."""

import re
from collections.abc import Sequence
from random import Random

_TOKEN = re.compile(
    r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|0[xX][0-9a-fA-F_]+|\d+\.\d+|@?\w+|\.\.\."
    r"|\.\*|=>|<<=|>>=|<<|>>|[-+*/%&|^=!<>]=|\s+|."
)
_NUMBERS = (
    *("0", "1", "-1", "2", "7", "8", "15", "16", "23", "24", "31", "32", "63", "64", "127"),
    *("255", "256", "32767", "32768", "65535", "65536", "2147483648", "4294967295"),
    *("4294967296", "18446744073709551615", "18446744073709551616", "99999999999999999999"),
    *("0.0", "-0.0", "0.5", "1e-40", "65504.0", "65520.0", "3.5e38", "1e400", "0x1.8p3"),
    *("0x", "0b2", "1_000", "'a'", '"a"', "true", "{}", ".{}", "undefined"),
)
_NOISE = "(){}[];,.:=@\"'\\/*&|<>!?#$~`\x00\x0b\ufeff\u2028\u00e9\U0001f600 \t\r\n"
_OPERATORS = frozenset(("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "<", "+=", "and"))
_KEYWORDS = frozenset(
    (
        *("fn", "task", "var", "const", "param", "if", "else", "for", "while", "switch", "break"),
        *("continue", "return", "comptime", "inline", "struct", "enum", "export", "layout"),
    )
)
_MAX_CHARACTERS = 6000
_NESTED = ("(", "[", "{", "-", "!", "*", "[1]", "fn(", ".{", "if (", "&", "@as(i16, ")


def tokens_of(text: str) -> list[str]:
    """The text as words whose concatenation it is."""
    return _TOKEN.findall(text) or [""]


def mutated(random: Random, texts: Sequence[str]) -> str:
    """One of the texts with one to four changes, some pieces from the others.

    Three of four stay well formed as a rule, so that they get past the parser.
    """
    words = tokens_of(random.choice(texts))
    change = _change if random.random() < 0.25 else _well_formed_change
    for _ in range(random.randrange(1, 5)):
        change(random, words, texts)
    return "".join(words)[:_MAX_CHARACTERS]


def _change(random: Random, words: list[str], texts: Sequence[str]) -> None:
    at = random.randrange(len(words) + 1)
    end = min(len(words), at + random.choice((1, 1, 1, 2, 4, 16)))
    match random.randrange(9):
        case 0:
            del words[at:end]
        case 1:
            words[at:at] = words[at:end]
        case 2:
            words[at:end] = [random.choice(_NUMBERS)]
        case 3:
            words[at:end] = [random.choice(words) if words else ""]
        case 4:
            words[at:end] = _piece(random, texts)
        case 5:
            words[at:at] = _piece(random, texts)
        case 6:
            words[at:at] = [_characters(random)]
        case 7:
            words[at:at] = [random.choice(_NESTED) * random.choice((2, 10, 100, 1000))]
        case _:
            _exchange(random, words)
    if not words:
        words.append("")


def _well_formed_change(random: Random, words: list[str], texts: Sequence[str]) -> None:
    """Put another word of the same kind in a word's place, or a line of another text behind one."""
    places = [k for k, word in enumerate(words) if _kind(word)]
    if not places or random.random() < 0.15:
        ends = [k for k, word in enumerate(words) if "\n" in word] or [0]
        at = random.choice(ends)
        words[at:at] = ["\n", random.choice(random.choice(texts).splitlines() or [""])]
        return
    at = random.choice(places)
    kind = _kind(words[at])
    others = words if random.random() < 0.5 else tokens_of(random.choice(texts))
    same = [word for word in others if _kind(word) == kind] or [words[at]]
    is_extreme = kind == "number" and random.random() < 0.5
    words[at] = random.choice(_NUMBERS) if is_extreme else random.choice(same)


def _kind(word: str) -> str:
    """Words of one kind may stand for each other without a syntax error."""
    if word[0:1] == "@":
        return "builtin"
    if word[0:1].isdigit():
        return "number"
    if word in _OPERATORS:
        return "operator"
    return "name" if word[0:1].isidentifier() and word not in _KEYWORDS else ""


def _piece(random: Random, texts: Sequence[str]) -> list[str]:
    words = tokens_of(random.choice(texts))
    at = random.randrange(len(words))
    return words[at : at + random.choice((1, 1, 2, 8, 30))]


def _characters(random: Random) -> str:
    return "".join(random.choice(_NOISE) for _ in range(random.randrange(1, 4)))


def _exchange(random: Random, words: list[str]) -> None:
    """Put another name of the same text in a name's place, so that more of it stays well formed."""
    names = [k for k, word in enumerate(words) if re.match(r"@?\w", word)]
    if len(names) > 1:
        first, second = random.sample(names, 2)
        words[first] = words[second]
