"""Frozen records: what `dataclasses` gives, at the price of a class statement.

Every event, effect, message and description in phalanx is a `Record`. Type checkers see a frozen
dataclass. At run time nothing is imported and nothing is generated: `dataclasses` would cost 14 ms
of start-up (it imports `inspect`) and half a millisecond per class, and a launcher's first promise
is that it adds little to a short job.

    class NodeJoined(Record):
        node: str
        local_world_size: int = 1

Fields are the annotated names, base classes first; defaults are class attributes and must be
immutable. Two records are equal when they are of the same class and all fields are equal.
"""

from __future__ import annotations

__all__ = ["Record", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, TypeVar, dataclass_transform

    R = TypeVar("R", bound="Record")
else:

    def dataclass_transform(**_options):
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Record:
    """Base of all records. Raises TypeError for missing, unknown or doubled arguments."""

    __match_args__: ClassVar[tuple[str, ...]] = ()
    _fields: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:

        def __init_subclass__(cls, **options):
            super().__init_subclass__(**options)
            own = cls.__dict__.get("__annotations__", ())  # noqa: RUF063 (no inspect here)
            inherited = cls._fields
            cls._fields = inherited + tuple(
                name
                for name in own
                if name not in inherited and not str(own[name]).startswith("ClassVar")
            )
            cls.__match_args__ = cls._fields

        def __init__(self, *args, **kwargs):
            cls = type(self)
            fields = cls._fields
            if len(args) > len(fields):
                raise TypeError(f"{cls.__name__} takes {len(fields)} fields, got {len(args)}")
            values = self.__dict__
            values.update(zip(fields, args, strict=False))
            for name, value in kwargs.items():
                if name not in fields or name in values:
                    raise TypeError(f"{cls.__name__} has no field {name!r} left to set")
                values[name] = value
            if len(values) < len(fields):
                for name in fields:
                    if name not in values and not hasattr(cls, name):
                        raise TypeError(f"{cls.__name__} needs a value for {name!r}")
                    values.setdefault(name, getattr(cls, name, None))

    def _values(self) -> tuple[object, ...]:
        return tuple(self.__dict__[name] for name in self._fields)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Record)
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._fields)
        return f"{type(self).__name__}({inside})"


def replace(record: R, **changes: Any) -> R:
    """A copy of `record` with some fields changed. Raises TypeError for an unknown field."""
    return type(record)(**{**record.__dict__, **changes})
