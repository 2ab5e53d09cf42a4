"""Seeded damage: to bytes, to documents field by field, to archives and to arrays. The same generator gives the same damage."""

from __future__ import annotations

import io
import json
import random
import struct
import tomllib
import zipfile

import tomli_w

DEEP = 100_000
DIGITS = "9" * 5_000
NUMBERS = (
    0,
    1,
    -1,
    2,
    127,
    255,
    256,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
)
#: What may stand in the place of any value of a JSON document, as text: not all of it is JSON.
JSON_VALUES = (
    "null", "true", "false", "0", "-1", "1", "0.5", "1e-320", "1e308", "-1e308", "1e999", "NaN", "Infinity", "-Infinity",
    str(2**31), str(2**63), str(-(2**63) - 1), str(2**64), "1" + "0" * 400, DIGITS, "-" + DIGITS, "[]", "{}", '""', '" "',
    '"x"',
    '"\\u0000"', '"\\ud800"', '"NaN"', '"1"', '"é\U0001f600"', '"' + "x" * 20_000 + '"', "[null]", "[[]]", "[0, 0]", "[1.5]",
    '{"a": null}', '{"": {}}', "[" * 200 + "]" * 200, "[" * DEEP + "]" * DEEP, '{"a":' * 5_000 + "0" + "}" * 5_000,
    "[" * DEEP, "[" + "0," * 3_000 + "0]", '"../../../etc/passwd"', '"/dev/zero"', '"2024-02-30"', '"00"', "undefined",
    "'a'", "",
)  # fmt: skip
BLOCKS = (
    b"", b"\x00", b"\xff", b"\x00" * 64, b"\xff" * 64, b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80",
    b"\r\n", b"\n", b'"',
    b",", b";", b"\t", b"'", b"{", b"[", b"]", b"}", b"nan", b"inf", b"-0", b"1e999", DIGITS.encode(), b"%s%n", b"PK\x03\x04",
    b"PK\x05\x06", b"\x93NUMPY", b"ARROW1", b"PAR1", b"SQLite format 3\x00", b"[" * 3_000, b"\x1b[31m", b"\xe2\x80\xae",
)  # fmt: skip
#: What may lie where a file is expected.
PLACES = ("fifo", "folder", "dangling", "loop", "device", "empty", "missing", "unreadable", "socket")


def damaged(rng: random.Random, data: bytes, others: list[bytes], *, form: str = "") -> bytes:
    """Valid content made wrong in a place or several; `form` is what it is: json, toml, zip, npz, csv, or just bytes."""
    known = {"json": json_document, "toml": toml_document, "zip": archive, "npz": npz, "csv": csv_text}
    if form in known and rng.random() < 0.6:
        try:
            data = known[form](rng, data)
        except (ValueError, TypeError, KeyError, zipfile.BadZipFile, struct.error, RecursionError):
            return some_bytes(rng, data, others)
        if rng.random() < 0.85:
            return data
    return some_bytes(rng, data, others)


def some_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to eight changes of bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        data = rng.choice(BYTE_CHANGES)(rng, data, others)[: 2**21]
    return data


def _at(rng: random.Random, data: bytes) -> int:
    """A place in the content: anywhere, or near its ends, where heads and footers are."""
    if not data:
        return 0
    near = rng.choice((len(data), len(data), min(len(data), 64), min(len(data), 512)))
    place = rng.randrange(near)
    return len(data) - 1 - place if rng.random() < 0.5 else place


def _flip(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _n in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[_at(rng, data) % len(changed)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + data[at + 1 :]


def _cut(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    return data[: _at(rng, data)] if rng.random() < 0.7 else data[_at(rng, data) :]


def _extend(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    more = rng.choice((rng.randbytes(rng.randrange(1, 100)), data, b"\x00" * 4096, *others[:4]))
    return data + more if rng.random() < 0.7 else more + data


def _splice(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    other = rng.choice(others) if others else data[::-1]
    return data[: _at(rng, data)] + other[_at(rng, other) :]


def _insert(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] + rng.choice((*BLOCKS, rng.randbytes(rng.randrange(1, 30)))) + data[at:]


def _overwrite(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at, block = _at(rng, data), rng.choice(BLOCKS)
    return data[:at] + block + data[at + len(block) :]


def _remove(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] + data[at + rng.randrange(1, 40) :]


def _repeat(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] + data[at : at + rng.randrange(1, 60)] * rng.choice((2, 3, 50)) + data[at:]


def _number(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    """An extreme number over four or eight bytes: a size that is declared, a count, a place."""
    at, width = _at(rng, data), rng.choice((2, 4, 8))
    number = (rng.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))
    return data[:at] + number + data[at + width :]


def _text_number(rng: random.Random, data: bytes, _: list[bytes]) -> bytes:
    """A digit becomes another number."""
    places = [i for i, byte in enumerate(data[:20_000]) if 48 <= byte <= 57]
    if not places:
        return _number(rng, data, [])
    at = rng.choice(places)
    return data[:at] + str(rng.choice((*NUMBERS, "nan", "1e999", "-", DIGITS))).encode() + data[at + 1 :]


BYTE_CHANGES = (
    _flip, _flip, _set, _set, _cut, _cut, _extend, _splice, _insert, _insert, _overwrite, _remove, _repeat, _number, _number,
    _text_number,
)  # fmt: skip


# Documents


def json_document(rng: random.Random, data: bytes) -> bytes:
    """A JSON document with one to four values replaced, names dropped, doubled or added."""
    document, raw = change_document(rng, json.loads(data))
    text = json.dumps(document)
    for mark, value in raw.items():
        text = text.replace(f'"{mark}"', value)
    if rng.random() < 0.1 and '", "' in text:  # a name twice
        text = text.replace("{", '{"a": 0, "a": 1, ', 1)
    return text.encode("utf-8", "surrogatepass")


def change_document(rng: random.Random, document: object) -> tuple[object, dict[str, str]]:
    """The document with marks in it, and the text that belongs where each mark stands."""
    raw: dict[str, str] = {}
    for number in range(rng.choice((1, 1, 1, 2, 4))):
        mark = f"@{number}@"
        raw[mark] = rng.choice(JSON_VALUES)
        document = _changed(rng, document, mark)
    return document, raw


def value_change(rng: random.Random, document: object) -> object:
    """The same with values that Python's JSON reads back, for documents that are packed otherwise."""
    values = (None, True, 0, -1, 1, 0.5, 2**31, 2**63, -(2**63), 10**40, [], {}, "", "x", "\x00", [None], {"a": []},
    "x" * 5_000,
              [[[]]], 1e308, [0] * 300)  # fmt: skip
    for _ in range(rng.choice((1, 1, 2, 3))):
        document = _changed(rng, document, rng.choice(values))
    return document


def _changed(rng: random.Random, document: object, value: object) -> object:
    """The document with one node replaced, removed, doubled, renamed, or exchanged for another node of its own."""
    nodes = list(_nodes(document))
    if not nodes:
        return value
    holder, key = rng.choice(nodes)
    how = rng.random()
    if how < 0.6:
        holder[key] = value
    elif how < 0.7:
        del holder[key]
    elif how < 0.78 and isinstance(holder, dict):
        holder[rng.choice(("", "unknown", str(key) + "x", str(key).upper(), "__class__"))] = holder.pop(key)
    elif how < 0.86:
        other, name = rng.choice(nodes)
        holder[key] = json.loads(json.dumps(other.get(name) if isinstance(other, dict) else other[name]))
    elif how < 0.93 and isinstance(holder, list):
        holder += holder[:50]
    else:
        holder[key] = _near(rng, holder[key])
    return document


def _near(rng: random.Random, value: object) -> object:
    """A value of the same kind, or nearly."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return rng.choice((value + 1, -value, value * 10**9, str(value), float(value) + 0.5, [value]))
    if isinstance(value, str):
        return rng.choice(
            (value + " ", value.upper(), value[: len(value) // 2], value * 200, [value], value[::-1], "\ufeff" + value)
        )
    return [value] if isinstance(value, dict) else {"a": value}


def _nodes(document: object):
    """Every place of a document that holds a value: its holder, and its name or number there."""
    waiting, count = [document], 0
    while waiting and count < 5_000:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                count += 1
                yield holder, key
                waiting.append(holder[key])


def toml_document(rng: random.Random, data: bytes) -> bytes:
    """A TOML document whose values are replaced; some of what replaces them is not TOML."""
    document, raw = change_document(rng, tomllib.loads(data.decode()))
    text = tomli_w.dumps(_without_nulls(document))
    for mark, value in raw.items():
        text = text.replace(f'"{mark}"', value if value != "null" else '"null"')
    return text.encode("utf-8", "surrogatepass")


def _without_nulls(document: object) -> dict:
    if not isinstance(document, dict):
        return {"columns": str(document)}
    return json.loads(json.dumps(document).replace("null", '"null"'))


def csv_text(rng: random.Random, data: bytes) -> bytes:
    """Lines of a CSV with fields exchanged, dropped, doubled; other delimiters, quotes and line ends."""
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    fields = lines[at].split(",")
    field = rng.randrange(len(fields))
    fields[field] = rng.choice(("", '"', '""', "nan", "inf", "1e999", DIGITS, "=1+1", "\x00", "a\nb", '"a\nb"',
    "2024-13-45", "\ufeff",
                                "x" * 70_000, "0x10", "1_000", "1,5", "٣", "-0"))  # fmt: skip
    if rng.random() < 0.2:
        fields *= rng.choice((2, 300))
    lines[at] = ",".join(fields)
    if rng.random() < 0.2:
        lines = lines[: rng.randrange(len(lines))]
    text = rng.choice(("\n", "\r\n", "\r", "\n\n")).join(lines)
    return text.replace(",", rng.choice((",", ",", ";", "\t", "|", " "))).encode("utf-8", "surrogatepass")


# Archives and arrays


def archive(rng: random.Random, data: bytes) -> bytes:
    """A zip with members missing, doubled, renamed, changed, or with lying sizes."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        members = [(name, packed.read(name)) for name in packed.namelist()]
    return _zip(rng, members)


def _zip(rng: random.Random, members: list[tuple[str, bytes]]) -> bytes:
    at = rng.randrange(len(members)) if members else 0
    how = rng.randrange(8)
    if members and how == 0:
        del members[at]
    elif members and how == 1:
        members.append(members[at])
    elif members and how == 2:
        members[at] = (rng.choice(("../up", "/etc/x", "", "a\x00b", members[at][0] + ".npy")), members[at][1])
    elif members and how in (3, 4, 5):
        name, content = members[at]
        form = "json" if name.endswith(".json") else ""
        content = npy(rng, content) if content[:6] == b"\x93NUMPY" else damaged(rng, content, [], form=form)
        members[at] = (name, content)
    elif how == 6:
        members.append(("bomb", b"\x00" * 2**20))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as packed:
        for name, content in members:
            with packed.open(zipfile.ZipInfo(name or "x"), "w") as file:
                file.write(content)
    content = made.getvalue()
    if how == 7:  # sizes in the directory that are not those of the members
        place = content.rfind(b"PK\x01\x02")
        lie = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1)))
        content = content[: place + 24] + lie + content[place + 28 :] if place >= 0 else content
    return content


def npz(rng: random.Random, data: bytes) -> bytes:
    return archive(rng, data)


def npy(rng: random.Random, data: bytes) -> bytes:
    """An array whose header says something else: shape, type, order; or whose content is cut."""
    size = int.from_bytes(data[8:10], "little")
    header, body = data[10 : 10 + size].decode("latin-1"), data[10 + size :]
    changes = {
        "shape": (f"({rng.choice(NUMBERS)},)", "()", "(0,)", "(-1,)", "(2, 2)", f"({2**31}, {2**31}, {2**31})", "None",
        "('a',)", "(1.5,)",
                  "(True,)", f"({DIGITS},)", "(" * 3_000),
        "descr": ("'|O'", "'<f8'", "'<i4'", "'|S5'", "'<U3'", "'|b1'", "'<c16'", "'|V8'", "[('a', '<f4')]", "'<M8[D]'",
        "'x'", "3", "None",
                  "'>f2'", "'|S0'", "'|V0'"),
        "fortran_order": ("True", "1", "'x'"),
    }  # fmt: skip
    name = rng.choice(("shape", "shape", "descr", "descr", "fortran_order", "cut", "bytes"))
    if name == "cut":
        return data[: rng.randrange(len(data) + 1)]
    if name == "bytes":
        return some_bytes(rng, data, [])
    start = header.find(f"'{name}':") + len(name) + 3
    end = header.find(", }", start) if name == "shape" else header.find(", '", start)
    header = header[:start] + " " + rng.choice(changes[name]) + header[end:]
    text = header.encode("latin-1")
    return data[:6] + b"\x01\x00" + struct.pack("<H", len(text) % 2**16) + text + body
