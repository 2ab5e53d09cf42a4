"""What every process of the drill loads before anything else; nothing outside the drill has this folder on its path.

POPULACE_DRILL_CLOCK   a file with a number of seconds: this process's clock is wrong by that much, from the next look on
POPULACE_DRILL_DETOUR  `PORT:PORT`: connections to the first port of this machine go to the second, where the drill's proxy is
POPULACE_DRILL_LIES    this process is a site that never sends an honest reply; the number seeds what it sends instead

`time.monotonic` and timers go on as they are, as when somebody sets a real clock.
"""

import importlib.abc
import importlib.machinery
import os
import socket
import sys
import time

SECONDS_BETWEEN_LOOKS = 0.1
EXECUTOR = "populace.engines.flare.executor"


def shift_clock(path):
    """Let `time.time`, and when the machine was booted as psutil computes it, be wrong by what the file says."""
    real, real_ns, monotonic = time.time, time.time_ns, time.monotonic
    kept = {"offset": 0.0, "until": 0.0}

    def offset():
        if monotonic() >= kept["until"]:
            kept["until"] = monotonic() + SECONDS_BETWEEN_LOOKS
            try:
                with open(path) as file:
                    kept["offset"] = float(file.read())
            except (OSError, ValueError):
                pass
        return kept["offset"]

    time.time = lambda: real() + offset()
    time.time_ns = lambda: real_ns() + int(offset() * 1e9)

    def shift_boot_time(module):
        boot_time = module.boot_time
        module.boot_time = lambda: boot_time() + offset()

    after_import("psutil._pslinux", shift_boot_time)


def make_detour(ports):
    """Connect to the proxy wherever the server is meant."""
    server, proxy = (int(port) for port in ports.split(":"))
    connect = socket.socket.connect

    def detoured(self, address):
        if isinstance(address, tuple) and address[1] == server:
            address = (address[0], proxy, *address[2:])
        return connect(self, address)

    socket.socket.connect = detoured


def after_import(name, change):
    """Call `change` with a module once it has been loaded."""

    class Loader(importlib.abc.Loader):
        def __init__(self, inner):
            self.inner = inner

        def create_module(self, spec):
            return self.inner.create_module(spec)

        def exec_module(self, module):
            self.inner.exec_module(module)
            change(module)

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path, target=None):
            if fullname != name:
                return None
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader)
            return spec

    sys.meta_path.insert(0, Finder())


def become_liar(seed):
    """Send lies in place of what the site's own code would send, past its own gate."""

    def change(module):
        from drill.liar import Liar

        Liar(module, seed).take_over()

    after_import(EXECUTOR, change)


if os.environ.get("POPULACE_DRILL_CLOCK"):
    shift_clock(os.environ["POPULACE_DRILL_CLOCK"])
if os.environ.get("POPULACE_DRILL_DETOUR"):
    make_detour(os.environ["POPULACE_DRILL_DETOUR"])
if os.environ.get("POPULACE_DRILL_LIES"):
    become_liar(int(os.environ["POPULACE_DRILL_LIES"]))
