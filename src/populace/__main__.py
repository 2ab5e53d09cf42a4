"""`python -m populace`."""

from populace.cli.main import run

run()
