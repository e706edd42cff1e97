"""The workers' key-value store, without a network: state and protocol.

`state` is what the store remembers and who waits for what; `parser` turns the octets of one
connection into operations on it and replies. Both are pure: octets come in, `(connection, octets)`
come out. `phalanx.net.store_server` moves them over sockets.
"""
