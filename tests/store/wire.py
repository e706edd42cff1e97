"""Queries of the TCPStore protocol as octets, written independently of the parser under test."""

from __future__ import annotations

import struct

GREETING = bytes.fromhex("00 CE F7 85 3C")

#: The first octets that clients of torch 1.13 to 2.1 send: ADD "init/" 1 in the old numbering.
OLD_CLIENT = bytes.fromhex("03 0500000000000000 696E69742F 0100000000000000")

#: What they send first if they were given no world size, in the old numbering of the wire reference
#: (section 11). Types 7 and up are those of torch 2.1; before, 7 was WATCH_KEY.
OLD_QUERIES = {
    "SET": bytes.fromhex("00 0200000000000000 2F6B 0100000000000000 76"),
    "COMPARE_SET": bytes.fromhex("01 0200000000000000 2F6B 0000000000000000 0100000000000000 76"),
    "GET": bytes.fromhex("02 0200000000000000 2F6B"),
    "ADD": OLD_CLIENT,
    "CHECK": bytes.fromhex("04 0100000000000000 0200000000000000 2F6B"),
    "WAIT": bytes.fromhex("05 0100000000000000 0200000000000000 2F6B"),
    "GETNUMKEYS": bytes.fromhex("06"),
    "WATCH_KEY, DELETE_KEY": bytes.fromhex("07 0200000000000000 2F6B"),
    "DELETE_KEY of 2.0": bytes.fromhex("08 0200000000000000 2F6B"),
    "APPEND": bytes.fromhex("08 0200000000000000 2F6B 0100000000000000 76"),
    "MULTI_GET": bytes.fromhex("09 0100000000000000 0200000000000000 2F6B"),
    "MULTI_SET": bytes.fromhex("0A 0100000000000000 0200000000000000 2F6B 0100000000000000 76"),
}


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def i64(number: int) -> bytes:
    return struct.pack("<q", number)


def text(octets: bytes) -> bytes:
    return u64(len(octets)) + octets


def texts(items: list[bytes]) -> bytes:
    return u64(len(items)) + b"".join(map(text, items))


def set_(key: bytes, value: bytes) -> bytes:
    return b"\x01" + text(key) + text(value)


def compare_set(key: bytes, expected: bytes, desired: bytes) -> bytes:
    return b"\x02" + text(key) + text(expected) + text(desired)


def get(key: bytes) -> bytes:
    return b"\x03" + text(key)


def add(key: bytes, delta: int) -> bytes:
    return b"\x04" + text(key) + i64(delta)


def check(*keys: bytes) -> bytes:
    return b"\x05" + texts(list(keys))


def wait(*keys: bytes) -> bytes:
    return b"\x06" + texts(list(keys))


def delete(key: bytes) -> bytes:
    return b"\x08" + text(key)


def append(key: bytes, value: bytes) -> bytes:
    return b"\x09" + text(key) + text(value)


def multi_get(*keys: bytes) -> bytes:
    return b"\x0a" + texts(list(keys))


def multi_set(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"\x0b" + u64(len(pairs)) + b"".join(text(k) + text(v) for k, v in pairs)


def ping(nonce: int) -> bytes:
    return b"\x0d" + struct.pack("<I", nonce)


def queue_push(key: bytes, value: bytes) -> bytes:
    return b"\x0e" + text(key) + text(value)


def queue_pop(key: bytes) -> bytes:
    return b"\x0f" + text(key)


def queue_length(key: bytes) -> bytes:
    return b"\x10" + text(key)


def barrier(key: bytes, size: int) -> bytes:
    return b"\x12" + text(key) + i64(size)


NUMBER_OF_KEYS = b"\x07"
CANCEL_WAIT = b"\x0c"
LIST_KEYS = b"\x11"
