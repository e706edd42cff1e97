"""A traceback of a thousand frames, no two alike."""


def left(depth):
    return right(depth + 1) + 1


def right(depth):
    return left(depth + 1) + 1


left(0)
