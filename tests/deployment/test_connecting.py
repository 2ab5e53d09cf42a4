"""A server that is there and says nothing: who connects to it gives up in time."""

import socket
import subprocess
import sys

import pytest

from federation_for_tests import free_port
from populace.engines.agreement import Agreement
from populace.federation.coordinator import Federation
from populace.methods.registry import make_protocol

pytest.importorskip("nvflare")

PROGRAM = """
import sys
from pathlib import Path
from populace.engines.flare.session import connect
from populace.errors import RunError
try:
    connect(Path(sys.argv[1]), seconds=1.0)
except RunError as error:
    sys.exit(str(error))
"""


def test_a_command_does_not_wait_for_a_server_that_never_shakes_hands(small_table, tmp_path):
    """A stopped server still accepts connections: the operating system does it."""
    port = free_port()
    agreement = Agreement(protocol=make_protocol("independent", {"epsilon": 1.0}), schema=small_table.schema)
    federation = Federation(tmp_path / "federation")
    federation.create(agreement, name="study", host="localhost", port=port)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", port))
        silent.listen(8)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(federation.lead_kit)], capture_output=True, text=True, timeout=90, check=False
        )  # fmt: skip
    assert done.returncode == 1
    assert "does not answer within 1 s" in done.stderr
