"""More memory than there is address space."""

bytearray(1 << 62)
