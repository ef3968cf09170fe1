"""Chats, as data sets hold them: lists of messages that have a role and a content."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from openwafer.diagnostics import OpenwaferError, error

_KEYS: Final = {"role", "content"}
_OTHER_KEYS: Final = {"from", "value"}
"""Of messages as ShareGPT writes them."""
_OTHER_ROLES: Final[Mapping[str, str]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
ANSWERING: Final = "assistant"
"""Role of the messages that a model learns to write."""


@dataclass(frozen=True)
class Chat:
    """Messages, as templates read them.

    Attributes:
        messages: each with a role and a content, and what else its template reads.
        num_prompt: how many of the first are a prompt, which no model learns to write.
    """

    messages: tuple[Mapping[str, Any], ...]
    num_prompt: int = 0


@dataclass(frozen=True)
class Completion:
    """A text that is learned behind another, which is not.

    Attributes:
        prompt: what stands before.
        text: what a model learns to write.
    """

    prompt: str
    text: str


Content = str | Chat | Completion


def is_chat(keys: Collection[str]) -> bool:
    """Whether objects of these keys are messages."""
    return any(message <= set(keys) for message in (_KEYS, _OTHER_KEYS))


def item_keys(value: object) -> Collection[str]:
    """Keys of the objects in a list."""
    first = value[0] if isinstance(value, list) and value else None
    return first.keys() if isinstance(first, dict) else ()


def chat_of(value: list[Any], column: str, origin: str) -> Chat:
    """The chat in a list of objects whose first is a message."""
    numbered = enumerate(value, start=1)
    return Chat(tuple(_message(one, f"{origin}: '{column}', message {n}") for n, one in numbered))


def _message(found: object, origin: str) -> Mapping[str, Any]:
    if not isinstance(found, dict) or not is_chat(found.keys()):
        raise _bad_message(
            f"{origin}: expected an object with role and content, found {found!r:.60}"
        )
    # Tables write a null where a message has no such key.
    message = {key: one for key, one in found.items() if one is not None}
    if not message.keys() >= _KEYS and message.keys() >= _OTHER_KEYS:
        role = _OTHER_ROLES.get(str(message["from"]))
        if role is None:
            raise _bad_message(
                f"{origin} is from {message['from']!r}, expected {', '.join(_OTHER_ROLES)}"
            )
        message = {"role": role, "content": message["value"]}
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise _bad_message(f"{origin}: its {key} is {message.get(key)!r:.60}, expected a text")
    return message


def _bad_message(what: str) -> OpenwaferError:
    return error("bad-message", what, help="mend the row, or leave it out")
