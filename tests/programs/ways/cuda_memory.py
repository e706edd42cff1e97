"""What torch raises when a device is full."""


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total ...")
