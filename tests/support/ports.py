"""Ports of this machine that a test gives to the processes that it starts."""

import socket

_KEPT = 64  # sockets at a time: far more than the tests of a process that run together

_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a port that nobody else is given before it is used.

    It stays bound, and is not listened at: the kernel gives it to no other process that asks for any port, and lets
    one that names it listen there, as servers do, with SO_REUSEADDR. A port that was closed again could be another's.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    if len(_reserved) > _KEPT:
        _reserved.pop(0).close()
    port: int = reserved.getsockname()[1]
    return port
