"""Pieces of work that the tests of `oracle.cluster` spread; a worker imports them by name."""

from __future__ import annotations

import os
import time

from oracle.errors import OracleError


def square(worker, number):
    """The square; small numbers take longer."""
    time.sleep(0.2 / (1 + number))
    return number * number


def refuse(worker, number):
    """Refuse one number, and take long over the others."""
    if number == 1:
        raise OracleError("one is refused")
    time.sleep(60)


def die(worker, number):
    """End the worker without a word."""
    os._exit(1)


def serve(worker, imports):
    """The process of the server for these imports, and of the worker."""
    return worker.server(imports)._process.pid, os.getpid()


def stay(worker, file):
    """Say in a file which processes are there and in which folder, and stay."""
    worker.server()
    with open(file, "a") as said:
        said.write(f"{os.getpid()} {worker.server()._process.pid} {worker._folder}\n")
    time.sleep(600)


def timed(worker, number):
    """When the piece began and ended."""
    began = time.time()
    time.sleep(0.5)
    return began, time.time()
