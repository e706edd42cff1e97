"""Two exceptions at once."""


def collect():
    problems = []
    for number in range(2):
        try:
            int(f"x{number}")
        except ValueError as error:
            problems.append(error)
    raise ExceptionGroup("bad shards", problems)


collect()
