"""Stands for a worker of a parallel run: gives a fork of the server its pipes, waits for its end.

A program of its own, which imports little: ``python tests/worker.py SOCKET``.
"""

import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [b"w"], [0, 1, 2])
        server.recv(1)
