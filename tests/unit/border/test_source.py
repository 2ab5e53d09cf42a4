"""No module reads a file past the border: uses of the libraries' own readers are listed here, each with its reason."""

from __future__ import annotations

import ast
from pathlib import Path

import populace

SOURCE = Path(populace.__file__).parent
#: Functions and methods that read files or parse documents.
READERS = {
    "read_text", "read_bytes", "read_csv", "open_csv", "read_table", "read_feather", "ParquetFile", "ParquetDataset",
    "read_metadata", "read_schema", "memory_map", "OSFile", "open_file", "open_stream", "ZipFile", "fromfile", "memmap",
    "loadtxt", "genfromtxt", "is_zipfile", "literal_eval",
}  # fmt: skip
#: The same, of modules: `json.loads`, `np.load`.
OF_MODULES = {
    ("json", "loads"), ("json", "load"), ("tomllib", "loads"), ("tomllib", "load"), ("np", "load"), ("csv", "reader"),
    ("csv", "DictReader"), ("pickle", "load"), ("pickle", "loads"), ("os", "open"), ("gzip", "open"), ("bz2", "open"),
    ("io", "open"), ("tarfile", "open"), ("sqlite3", "connect"), ("duckdb", "connect"),
}  # fmt: skip
BORDER = {
    "read_text",
    "read_bytes",
    "read_table",
}  # names of functions of ours too: called without a dot they are those
ALLOWED = {
    "tables/reading.py": {"read_csv": "the border has looked at the file and its header (csv_options)"},
    "tables/stream.py": {"open_csv": "the border has looked at the file and its header (csv_options)"},
    "tables/facts.py": {"open_csv": "the border has looked at the file and its header (csv_options)"},
    "tables/images.py": {"ZipFile": "writes images"},
    "tables/hospitals/records.py": {"read_text": "a file of this package"},
    "methods/blocks/conditions.py": {"csv.reader": "values of one option, with commas between them"},
    "methods/facts.py": {"read_text": "the source of a method of this package", "literal_eval": "the same"},
    "runs/plan.py": {"read_text": "a file of this package", "json.loads": "the same"},
    "runs/advise/expectations.py": {"read_text": "a file of this package", "json.loads": "the same"},
    "cli/compilation_cache.py": {"read_text": "what the kernel says of the processor"},
    "tables/datasets/loaders.py": {
        "ParquetFile": "bytes of a public data set, whose SHA-256 is compared", "np.load": "the same", "read_csv": "the same",
    },
    "federation/site.py": {"ZipFile": "writes a backup"},
    "federation/sum_keys.py": {"os.open": "makes a new key, O_EXCL"},
    "engines/agreement.py": {"json.loads": "what was dumped in the same line"},
    "engines/flare/kits.py": {"ZipFile": "of an open file from the border, with a limit on what is unpacked"},
    "collector/sqlite_store.py": {"sqlite3.connect": "the collector's own store"},
    "privacy/ledger_file.py": {
        "os.open": "makes ledgers and heads; what is no file is refused before", "sqlite3.connect": "ledgers, which it writes",
    },
    "privacy/sqlite_ledger.py": {"open_file": "the ledger's own function of that name"},
    "privacy/run_ledger.py": {"os.open": "makes a new ledger, O_EXCL", "read_bytes": "of the file it has just made",
                              "sqlite3.connect": "ledgers, which it writes"},
    "runs/poll/sorting.py": {"OSFile": "files in a temporary folder of this process", "open_stream": "the same"},
    "runs/verify/method.py": {"json.loads": "what was dumped in the same line"},
}  # fmt: skip


def uses(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if (owner, function.attr) in OF_MODULES:
                found.add(f"{owner}.{function.attr}")
            elif function.attr in READERS:
                found.add(function.attr)
            elif function.attr == "open" and not owner.startswith("os") and _reads(node.args[:1]):
                found.add("open")
        elif isinstance(function, ast.Name):
            if function.id in READERS - BORDER:
                found.add(function.id)
            elif function.id == "open":
                found.add("open")
    return found


def _reads(mode: list[ast.expr]) -> bool:
    """Whether a method `open` is called without a mode, or with one that reads."""
    return not mode or (isinstance(mode[0], ast.Constant) and str(mode[0].value) in ("r", "rb", "rt"))


def test_files_are_read_at_the_border_alone() -> None:
    stray = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith("border/"):
            left = uses(path) - set(ALLOWED.get(name, {}))
            if left:
                stray[name] = sorted(left)
    assert stray == {}, "read files through populace.border, or give a reason in ALLOWED"


def test_every_exception_is_still_one() -> None:
    for name, reasons in ALLOWED.items():
        assert set(reasons) <= uses(SOURCE / name), name


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "stray.py"
    path.write_text(
        "json.loads(x)\npath.read_text()\nopen(p)\npath.open()\npath.open('rb')\npa.ipc.open_file(s)\nnp.load(f)\n"
    )
    assert uses(path) == {"json.loads", "read_text", "open", "open_file", "np.load"}
    path.write_text("read_text(path)\npath.open('wb')\njson.dumps(x)\n")
    assert uses(path) == set()
