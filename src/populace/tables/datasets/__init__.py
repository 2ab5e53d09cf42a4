"""Named public data sets, read from the folder that the environment variable POPULACE_DATA names.

    table = datasets.load("adult")                # the published training rows
    test = datasets.load("adult", split="test")

Nothing is fetched from the network: `describe(name)` says which files are looked for and where they are published.
Every table comes with a schema declared from the publisher's documentation, never read from the rows.
"""

from populace.tables.datasets.registry import (
    VARIABLE,
    Split,
    describe,
    load,
    load_images,
    load_persons,
    load_table,
    names,
)

__all__ = ["VARIABLE", "Split", "describe", "load", "load_images", "load_persons", "load_table", "names"]
