"""One browser for all tests of a file, and servers for the collector's pages."""

import contextlib
import os

import pytest

from . import chromium
from .studies import Stub

if pictures := os.environ.get("POPULACE_SCREENSHOTS"):
    os.makedirs(pictures, exist_ok=True)


@pytest.fixture(scope="module")
def browser():
    path = chromium.find()
    if path is None:
        _without("no browser is installed (looked for chromium); on Debian: apt-get install chromium")
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(chromium.browser(path))
        except (OSError, RuntimeError) as error:
            _without(f"the browser {path} does not start: {error}")
        yield running


def _without(reason):
    """`make test` goes on without a browser and says why; `make test-browser` does not."""
    if os.environ.get("POPULACE_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def stub():
    running = Stub()
    yield running
    running.close()
