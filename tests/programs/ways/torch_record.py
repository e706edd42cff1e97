"""A main that torch's own @record decorates."""

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise ValueError("recorded by torch")


main()
