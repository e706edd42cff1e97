"""What talks over sockets: it moves octets, and decides nothing that a pure package decides."""
