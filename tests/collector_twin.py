"""What a page does, on the interface's JSON alone: from record to report in whole numbers, as docs/collector-api.md has it."""

from __future__ import annotations

import secrets

from populace.collector.questions import code_of


def record_codes(columns, record):
    """The code of every column, from what was typed: a category's text, a number, or None."""
    codes = []
    for column in columns:
        value = record[column["name"]]
        if value is None:
            codes.append(column["null_code"])
        elif "categories" in column:
            codes.append(column["categories"].index(value))
        else:
            codes.append(code_of(column, value))
    return codes


def below(bound):
    """A whole number below a bound, evenly: bits, drawn again where they are too many."""
    bits = (bound - 1).bit_length()
    while True:
        drawn = secrets.randbits(bits) if bits else 0
        if drawn < bound:
            return drawn


def told_values(question, codes, *, high=None, low=None):
    """The set of values that is told; `high` and `low` put another probability in the place of the table's."""
    cell = sum(asked["groups"][codes[asked["column"]]] * asked["stride"] for asked in question["columns"])
    value = cell if question["values"] is None else question["values"][cell]
    report = question["report"]
    size, chosen = report["size"], report["chosen"]
    if size == 1:
        return {0}
    high, low = (report["high"], report["low"]) if high is None else (high, low)
    first, second = secrets.randbits(31), secrets.randbits(32)
    own = first < high or (first == high and second < low)
    others = [other for other in range(size) if other != value]
    wanted = chosen - own
    for place in range(wanted):
        swap = place + below(len(others) - place)
        others[place], others[swap] = others[swap], others[place]
    return {*others[:wanted], *([value] if own else [])}


def packed(report, told):
    """A set of values as it is sent."""
    if report["encoding"] == "bits":
        bits = [int(value in told) for value in range(report["size"])]
    else:
        bits = [value >> place & 1 for value in sorted(told) for place in range(report["index_bits"])]
    bits += [0] * (8 * report["bytes"] - len(bits))
    return bytes(int("".join(map(str, bits[at : at + 8])), 2) for at in range(0, len(bits), 8))


def make_report(question, codes):
    return packed(question["report"], told_values(question, codes))
