"""Real sites over NVIDIA FLARE: the only part of populace that knows of it.

controller   the coordinator's job: a link over FLARE tasks, and one segment of a run
executor     the site's job: the one class a site lets a job name, without arguments, and the filter of what leaves
policy       the files that make a site refuse everything else
kits         certificates and startup kits; a site's private key never leaves it
connecting   connections that are made in bounded time
certificates who is whose, until when, and the signed list of who is revoked
tls          connections that take certificates of the federation's root alone, and none on the list
tally        what the coordinator has had of each site over all runs, signed; the newest list goes with it
client, worker, server   FLARE's processes at a site, of its jobs, and at the coordinator, guarded
processes    starting and stopping the long-lived processes
session      what the coordinator says to its server: submit, abort, who is connected
"""

from __future__ import annotations

import importlib.util

from populace.errors import MissingExtra


def require() -> None:
    """Raise MissingExtra where FLARE is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        raise MissingExtra("a federation needs NVIDIA FLARE; install it with: pip install 'populace[federation]'")
