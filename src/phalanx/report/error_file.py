"""PURE: reads the error file that torch's `@record`, or `--run-path`, leaves in a worker.

    {"message": {"message": "ValueError: boom",
                 "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1796126273"}}}

`message` may be a plain text as well. Whatever else stands in the file, and however it is broken
off, is no error: then there is less to tell.
"""

from __future__ import annotations

import json
import re

from phalanx.record import Record
from phalanx.report.foreign import MOST_OCTETS, lines_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ErrorFile", "parse", "whole"]

#: A text of JSON that may be broken off.
_TEXT = r'"((?:[^"\\]|\\.)*)'
_MESSAGE = re.compile(r'"message"\s*:\s*' + _TEXT, re.DOTALL)
_STACK = re.compile(r'"py_callstack"\s*:\s*' + _TEXT, re.DOTALL)
_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])')
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class ErrorFile(Record):
    """What a worker recorded of its exception, as clean lines."""

    #: The exception's own line, "ValueError: boom".
    headline: str
    #: The whole message, and the traceback ("" lines and all); either may be empty.
    message: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()


def parse(octets: bytes) -> ErrorFile | None:
    """What the file tells; None: nothing."""
    octets = octets[:MOST_OCTETS]
    if not octets:
        return None
    data = whole(octets)
    message, stack = _from_data(data) if data is not None else _from_pieces(text_of(octets))
    told, frames = lines_of(message), lines_of(stack)
    headline = next((line for line in told if line), "")
    if not headline:
        headline = frames[-1].strip() if frames else ""
    return ErrorFile(headline, tuple(told), tuple(frames)) if headline else None


def whole(octets: bytes) -> dict[str, Any] | None:
    """The file's object; None: it holds none that is whole."""
    try:
        data = json.loads(octets.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _from_data(data: dict[str, Any]) -> tuple[str, str]:
    message = data.get("message")
    details: object = data
    if isinstance(message, dict):
        details = message.get("extraInfo")
        message = message.get("message")
    stack = details.get("py_callstack") if isinstance(details, dict) else None
    return (
        message if isinstance(message, str) else "",
        stack if isinstance(stack, str) else "",
    )


def _from_pieces(text: str) -> tuple[str, str]:
    """Of a file that is broken off or cut: the texts that are still to be found."""
    message, stack = _MESSAGE.search(text), _STACK.search(text)
    return (
        _ESCAPE.sub(_unescape, message[1]) if message else "",
        _ESCAPE.sub(_unescape, stack[1]) if stack else "",
    )


def _unescape(found: re.Match[str]) -> str:
    letter = found[1]
    return chr(int(letter[1:], 16)) if len(letter) == 5 else _SHORT.get(letter, letter)
