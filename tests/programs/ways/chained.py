"""An exception in the handling of another, and one raised from another."""


def read():
    try:
        {}["batch"]
    except KeyError as error:
        raise ValueError("no batch") from error


try:
    read()
except ValueError:
    raise RuntimeError("cannot go on\nsecond line of the message")  # noqa: B904
