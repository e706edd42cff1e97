"""`python -m phalanx.launch`: the old form, as `python -m torch.distributed.launch` had it.

The same options, and `--use-env`. Without that the script gets `--local-rank=N` as its first
argument. Everything else is as with `phalanx`.
"""

from phalanx.__main__ import start

__all__: list[str] = []

if __name__ == "__main__":
    start(old_form=True)
