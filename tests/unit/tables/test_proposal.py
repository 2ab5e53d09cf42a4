"""What is recognised in a table, and that the cells proposed for numbers keep them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import SchemaError
from populace.tables import codec
from populace.tables.binning import choose_cells, roundest
from populace.tables.proposal import propose
from populace.tables.schema import Column, Schema, load_schema
from populace.tables.table import make_table, read_frame, read_table, to_arrow, write_frame

from .strategies import FAST

ROWS = 4_000
RNG = np.random.default_rng(0)


def column(values: object, name: str = "v", **options: object) -> Column:
    return propose(pa.table({name: values}), **options).schema.column(name)


def written(values: object, folder: Path, **options: object) -> Column:
    """The same through a CSV file, in which everything is text."""
    write_frame(pa.table({"v": values}), folder / "v.csv")
    found = propose(read_frame(folder / "v.csv"), **options).schema.column("v")
    (folder / "v.csv").unlink()
    return found


FRAME = pa.table(
    {
        "n": list(range(100)),
        "few": [i % 3 for i in range(100)],
        "x": [i / 7 for i in range(100)],
        "price": [i / 100 for i in range(100)],
        "word": [("b", "a")[i % 2] for i in range(100)],
        "flag": [i % 5 == 0 for i in range(100)],
        "gap": [None if i % 10 == 0 else i for i in range(100)],
        "day": [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(100)],
        "at": [dt.datetime(2020, 1, 1, 8) + dt.timedelta(hours=i) for i in range(100)],
        "clock": [dt.time(i % 24, i % 60) for i in range(100)],
    }
)


def test_kinds_follow_the_values() -> None:
    schema = propose(FRAME).schema
    assert [(c.name, c.kind, c.dtype, c.step, c.nullable) for c in schema.columns] == [
        ("n", "integer", "integer", 1, False), ("few", "ordinal", "integer", 0, False),
        ("x", "decimal", "float", 0, False), ("price", "decimal", "float", 0.01, False),
        ("word", "categorical", "string", 0, False), ("flag", "boolean", "boolean", 0, False),
        ("gap", "integer", "integer", 1, True), ("day", "date", "date", 1, False),
        ("at", "datetime", "datetime", 3_600, False), ("clock", "time", "time", 60, False),
    ]  # fmt: skip
    assert schema.read_from_data == schema.names


def test_csv_parquet_pandas_and_polars_propose_the_same_schema(tmp_path: Path) -> None:
    expected = propose(FRAME).schema
    assert propose(to_arrow(FRAME.to_pandas())).schema == expected
    assert propose(to_arrow(pl.from_arrow(FRAME))).schema == expected
    for suffix in (".csv", ".parquet", ".arrow"):
        write_frame(FRAME, tmp_path / f"t{suffix}")
        assert propose(read_frame(tmp_path / f"t{suffix}")).schema == expected
        assert read_table(tmp_path / f"t{suffix}").codes.tolist() == make_table(FRAME, expected).codes.tolist()
    assert column(pd.Categorical(["x", "y"]).tolist()).categories == ("x", "y")


WAYS = [(0, 1), (False, True), ("0", "1"), ("false", "true"), ("no", "yes"), ("N", "Y"), ("F", "T"), (0.0, 1.0)]


@pytest.mark.parametrize(("no", "yes"), WAYS)
def test_two_values_are_boolean_however_they_are_written(no: object, yes: object, tmp_path: Path) -> None:
    pattern = [yes, no, no, yes, no] * 20
    for found in (column(pattern), written(pattern, tmp_path)):
        assert (found.kind, found.levels, found.size) == ("boolean", 2, 2)
        codes = codec.encode_column(pa.array(pattern), found)
        assert codes.tolist() == [1, 0, 0, 1, 0] * 20


def test_two_other_values_are_categories_and_never_ordinal() -> None:
    for values in ([-1, 1] * 50, [1, 2] * 50, ["male", "female"] * 50):
        assert column(values).kind == "categorical"


def counts(table: dict[int, int]) -> list[int]:
    return [value for value, count in table.items() for _ in range(count)]


CODES = counts({1: 5_000, 2: 2_000, 3: 1_800, 4: 1, 5: 600, 6: 500, 7: 2, 8: 40})
SCALE = counts({1: 100, 2: 400, 3: 700, 4: 500, 5: 200, 6: 60, 7: 9, 8: 3, 9: 1})


def test_whole_numbers_with_holes_are_codes_and_a_scale_is_none() -> None:
    assert column(CODES).kind == "categorical"
    assert column(SCALE).kind == "ordinal"
    assert column(SCALE, "admission_type_id").kind == "categorical"
    assert column(SCALE, "countryCode").kind == "categorical"
    assert column(SCALE, "paid").kind == "ordinal"
    tens = counts({10 * k: 100 + k for k in range(1, 9)})
    assert column(tens).kind == "ordinal"
    small = counts({1: 5, 2: 9, 7: 4, 9: 6})
    assert column(small).kind == "ordinal", "ten rows are no evidence for holes"


def test_ages_hours_and_counts_are_scales() -> None:
    for values in (
        RNG.normal(40, 12, ROWS).clip(17, 90),
        RNG.poisson(2, ROWS),
        RNG.geometric(0.6, ROWS),
        RNG.integers(1, 32, ROWS),
    ):
        assert column(np.rint(values).astype(int)).kind in ("integer", "ordinal")


def test_text_with_leading_zeros_is_a_code(tmp_path: Path) -> None:
    found = written([f"0{1000 + i % 30}" for i in range(600)], tmp_path)
    assert (found.kind, found.dtype, found.categories[0]) == ("categorical", "string", "01000")


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("v", [f"id{i}" for i in range(1_001)], "id"),
        ("v", [f"patient {i} felt well today" for i in range(200)], "text"),
        ("patient_nbr", list(range(10_000, 12_000)), "id"),
        ("patient_nbr", [10_000 + i // 2 * 7 for i in range(4_000)], "id"),
        ("v", [2**60 + i for i in range(200)], "id"),
        ("v", [[1]] * 5, "text"),
    ],
)
def test_ids_and_free_text_stop_nothing(name: str, values: list[object], kind: str) -> None:
    found = propose(pa.table({name: values, "a": ["x", "y"] * (len(values) // 2) + ["x"] * (len(values) % 2)}))
    assert [(other.name, other.kind) for other in found.schema.others] == [(name, kind)]
    assert any(name in note for note in found.notes)


def test_weights_are_numbers_although_nearly_all_differ() -> None:
    assert column(RNG.integers(10_000, 1_000_000, ROWS), "fnlwgt").kind == "integer"


def test_hundreds_of_categories_are_categories() -> None:
    codes = [f"E{i % 1_500:04d}" for i in range(9_000)]
    assert column(codes).levels == 1_500
    assert column([f"I{i % 700}" for i in range(2_000)]).levels == 700


def test_missing_values_are_recognised_and_said(tmp_path: Path) -> None:
    write_frame(pa.table({"work": ["a", "?", "b", "?"] * 10, "n": [str(i) if i % 4 else "NA" for i in range(40)],
                          "e": [None] * 40, "one": ["x"] * 40,
                          "odd": ["unknown" if i % 10 == 0 else str(i) for i in range(40)]}), tmp_path / "t.csv")  # fmt: skip
    found = propose(read_frame(tmp_path / "t.csv"))
    assert found.schema.names == ("work", "n", "one", "odd")
    assert found.schema.column("work").missing == ("?",)
    assert found.schema.column("odd").missing == ("unknown",)
    assert [found.schema.column(name).kind for name in found.schema.names] == [
        "categorical", "integer", "categorical", "integer",
    ]  # fmt: skip
    assert "work: 20 missing, written '?'" in found.notes
    assert "n: 10 missing, written 'NA'" in found.notes
    assert "e: no value in any row; left out" in found.notes
    assert found.missing == {"work": 20, "n": 10, "odd": 4}
    table = read_table(tmp_path / "t.csv", found.schema)
    assert table.frame.column("n").to_pylist()[:2] == [None, 1]


FORMS = [
    ("%Y-%m-%d", "date", ""), ("%d.%m.%Y", "date", "%d.%m.%Y"), ("%m/%d/%Y", "date", "%m/%d/%Y"),
    ("%d/%m/%Y", "date", "%d/%m/%Y"), ("%Y/%m/%d", "date", "%Y/%m/%d"), ("%Y-%m-%d %H:%M:%S", "datetime", ""),
    ("%Y-%m-%dT%H:%M", "datetime", ""), ("%d.%m.%Y %H:%M", "datetime", "%d.%m.%Y %H:%M"), ("%H:%M", "time", ""),
    ("%H:%M:%S", "time", ""),
]  # fmt: skip


@pytest.mark.parametrize(("form", "kind", "kept"), FORMS)
def test_dates_and_times_in_many_forms(form: str, kind: str, kept: str, tmp_path: Path) -> None:
    moments = [dt.datetime(2020, 1, 1, 9, 30) + dt.timedelta(days=3 * i, minutes=7 * i) for i in range(200)]
    texts = [moment.strftime(form) for moment in moments]
    found = written(texts, tmp_path)
    assert (found.kind, found.format) == (kind, kept)
    numbers = found.numbers(pa.array(texts))
    again = found.numbers(codec.store_column(pa.array(texts), found))
    assert np.array_equal(numbers, again)
    if kind == "date":
        assert numbers[:2].tolist() == [18_262, 18_265]


def test_an_ambiguous_order_of_day_and_month_is_said(tmp_path: Path) -> None:
    texts = [f"{1 + i % 12:02d}/{1 + i % 7:02d}/2020" for i in range(100)]
    found = propose(pa.table({"v": texts}))
    assert found.schema.column("v").format == "%d/%m/%Y"
    assert any("fits %d/%m/%Y and %m/%d/%Y" in note for note in found.notes)


def test_a_decimal_comma_is_read_where_semicolons_part_the_fields(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b\n" + "".join(f"{i},5;x{i % 3}\n" for i in range(60)), encoding="utf-8-sig")
    schema = propose(read_frame(tmp_path / "t.csv")).schema
    assert (schema.column("a").kind, schema.column("a").step) == ("decimal", 0.1)
    assert read_table(tmp_path / "t.csv", schema).frame.column("a").to_pylist()[:2] == [0.5, 1.5]


def redrawn(values: np.ndarray, **options: object) -> tuple[Column, np.ndarray]:
    found = column(values, **options)
    rng = np.random.default_rng(1)
    drawn = codec.decode_column(codec.encode_column(pa.array(values), found), found, rng)
    return found, found.numbers(drawn)


def ks(a: np.ndarray, b: np.ndarray) -> float:
    grid = np.union1d(a, b)
    return float(
        np.abs(
            np.searchsorted(np.sort(a), grid, "right") / len(a) - np.searchsorted(np.sort(b), grid, "right") / len(b)
        ).max()
    )


def gains() -> np.ndarray:
    """As Adult's capital gains: 92 % nothing, a heavy tail, and a code for "more than we say"."""
    values = np.where(RNG.random(30_000) < 0.917, 0, np.rint(np.exp(RNG.normal(8.5, 0.8, 30_000)))).clip(0, 41_310)
    values[:160] = 99_999
    return values.astype(int)


SHAPES = {
    "gains": gains(),
    "ages": np.rint(RNG.gamma(9, 4.5, 20_000)).clip(17, 90).astype(int),
    "hours": np.where(RNG.random(20_000) < 0.47, 40, np.rint(RNG.normal(40, 13, 20_000))).clip(1, 99).astype(int),
    "amounts": np.round(np.exp(RNG.normal(3, 1.5, 20_000)), 2),
    "normal": RNG.normal(0, 1, 20_000),
    "counts": RNG.negative_binomial(0.3, 0.1, 20_000),
    "debts": np.rint(RNG.standard_t(3, 20_000) * 1_000).astype(int),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_values_drawn_from_their_cells_are_distributed_as_before(name: str) -> None:
    values = SHAPES[name]
    found, drawn = redrawn(values)
    assert ks(values, drawn) < 0.02
    assert abs(drawn.mean() - values.mean()) < 0.02 * max(abs(values.mean()), values.std())
    # A cell holds at least a five-hundredth of the rows: with less, noise counts for more. What lies beyond carries much of the
    # variance of a log-normal this wide.
    assert abs(drawn.std() / values.std() - 1) < (0.1 if name == "amounts" else 0.06)
    assert abs((drawn == 0).mean() - (values == 0).mean()) < 0.005
    assert 4 <= found.levels <= 25


def test_spikes_are_values_that_stand_out() -> None:
    assert column(SHAPES["gains"]).spikes == (0, 99_999)
    assert 40 in column(SHAPES["hours"]).spikes
    assert column(SHAPES["ages"]).spikes == ()
    pdays = np.where(RNG.random(5_000) < 0.3, -1, RNG.integers(1, 400, 5_000))
    assert column(pdays).spikes[0] == -1


def test_far_values_are_moved_and_said() -> None:
    values = np.concatenate([RNG.poisson(3, 40_000), [275]])
    found = propose(pa.table({"v": values}))
    assert found.schema.column("v").clip
    assert max(found.schema.column("v").labels()[-1:]) < "30"
    assert "v: 1 outlying value(s) outside 0 to" in found.notes[0]
    assert make_table(pa.table({"v": values}), found.schema).clipped == {"v": 1}


def test_a_column_never_collapses() -> None:
    values = np.concatenate([np.zeros(9_990), np.arange(1, 31)]).astype(int)
    assert column(values).levels >= 4


INTEGERS = st.lists(st.integers(-1_000, 1_000), min_size=1, max_size=80)
REALS = st.lists(st.floats(-1e9, 1e9) | st.floats(-1e300, 1e300), min_size=1, max_size=80)
LUMPS = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 40, 41, 42, 99, 1_000, 99_999]), min_size=17, max_size=400)


@FAST
@given(INTEGERS | REALS | LUMPS, st.booleans())
def test_a_proposed_schema_always_fits_its_table(values: list[float], gap: bool) -> None:
    frame = pa.table({"v": pa.array([*values, None] if gap else values)})
    schema = propose(frame).schema
    made = make_table(frame, schema)
    assert len(made) == frame.num_rows
    assert schema.columns[0].nullable == gap
    distinct = len(set(values))
    assert schema.columns[0].levels <= max(25, distinct if schema.columns[0].kind == "categorical" else 25)
    assert schema.columns[0].levels >= min(4, distinct)


@FAST
@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from([0.0, 0.01, 1.0]))
def test_a_round_number_lies_where_it_should(low: float, width: float, step: float) -> None:
    low, high = (round(x / step) * step if step else x for x in (low, low + width))
    if high > low:
        assert low < roundest(low, high, step, "decimal") <= high
    assert roundest(11_873, 25_012, 1, "integer") == 20_000
    assert roundest(1e305, 1.7e308, 0.0, "decimal") == 1e308  # 10^309 is no float
    assert roundest(17.93, 18.4, 0.01, "decimal") == 18


def test_domains_of_several_tables_are_joined() -> None:
    one, two = (
        pa.table({"a": ["x", "y"] * 20, "n": list(range(40))}),
        pa.table({"a": ["y", "z"] * 20, "n": list(range(60, 100))}),
    )
    schema = propose(one, two).schema
    assert schema.column("a").categories == ("x", "y", "z")
    assert (min(schema.column("n").edges), max(schema.column("n").edges)) == (0, 99)
    with pytest.raises(SchemaError, match="do not have the same columns: b in one only"):
        propose(one, pa.table({"a": ["x"], "n": [1], "b": [2]}))


def test_options_overrule_what_is_recognised() -> None:
    found = propose(
        FRAME, drop=["x"], ids=["n"], kinds={"few": "integer", "price": "categorical"}, target="word"
    ).schema
    assert "x" not in found.order
    assert [(o.name, o.kind, o.dtype, o.position) for o in found.others] == [("n", "id", "integer", 0)]
    assert found.column("few").kind == "integer"
    assert found.column("price").levels == 100
    assert found.target == "word"
    with pytest.raises(SchemaError, match="no column 'q', 'r' in the table; columns are n, few"):
        propose(FRAME, drop=["q"], ids=["r"])
    with pytest.raises(SchemaError, match=r"expected a kind in .*, got few=scale"):
        propose(FRAME, kinds={"few": "scale"})
    with pytest.raises(
        SchemaError, match=r"2 problems: column 'word' is to be integer.*; column 'flag' is to be a date"
    ):
        propose(FRAME, kinds={"word": "integer", "flag": "date"})


def test_clip_opens_the_domains_for_later_rows() -> None:
    schema = propose(FRAME, clip=True, target="word").schema
    later = {name: FRAME.column(name).to_pylist()[:1] for name in FRAME.column_names}
    later |= {"n": [1_000], "few": [9], "price": [-3.0], "day": [dt.date(2031, 1, 1)]}
    table = make_table(pa.table(later), schema)
    assert dict(table.clipped) == {"n": 1, "few": 1, "price": 1, "day": 1}
    assert table.frame.column("n").to_pylist() == [99]
    words = propose(pa.table({"w": ["a", "b", "c"], "k_code": [1, 2, 9]}), clip=True).schema
    assert make_table(pa.table({"w": ["q"], "k_code": [77]}), words).frame.to_pylist() == [
        {"w": "(other)", "k_code": -1}
    ]


def test_a_public_table_gives_public_domains() -> None:
    schema = propose(FRAME, public="census.csv").schema
    assert schema.read_from_data == ()
    assert schema.domain_sources == (("read from public data: census.csv", schema.names),)


def test_problems_are_said_together_and_nothing_to_model_is_refused() -> None:
    with pytest.raises(
        SchemaError, match=r"2 problems: column 'a' holds an infinite value.*; column 'b' holds an infinite"
    ):
        propose(pa.table({"a": [1.0, np.inf], "b": [-np.inf, 2.0], "c": ["x", "y"]}))
    with pytest.raises(SchemaError, match="without rows"):
        propose(FRAME.slice(0, 0))
    with pytest.raises(SchemaError, match="no column of the table can be modelled: e: no value in any row"):
        propose(pa.table({"e": pa.array([None, None], pa.string())}))


def test_one_word_overrules_a_schema_file(tmp_path: Path) -> None:
    propose(pa.table({"rooms": [1, 2, 3, 5] * 20, "day": [1 + i % 31 for i in range(80)]})).schema.save(
        tmp_path / "s.toml"
    )
    text = (tmp_path / "s.toml").read_text()
    (tmp_path / "s.toml").write_text(
        text.replace('"ordinal"', '"integer"').replace('kind = "integer"\nedges', 'kind = "ordinal"\nedges')
    )
    schema = load_schema(tmp_path / "s.toml")
    assert (schema.column("rooms").kind, schema.column("rooms").spikes) == ("integer", (1, 2, 3, 5))
    assert schema.column("day").categories == tuple(str(day) for day in range(1, 32))


def test_a_schema_of_few_values_keeps_each() -> None:
    found = choose_cells(np.array([1.0, 2.0, 3.0, 4.0]), 1.0, "integer")
    listed = Column(name="a", kind="integer", edges=found.edges, spikes=found.spikes, laws=found.laws)
    assert listed.levels == 4
    assert listed.centres().tolist() == [1, 2, 3, 4]
    gaps = choose_cells(np.array([0.5, 2.0, 7.5]), 0.5, "decimal")
    assert (gaps.edges, gaps.spikes) == ((), (0.5, 2.0, 7.5))


def test_relabelled_columns_give_the_same_codes() -> None:
    pattern = RNG.integers(0, 2, (200, 3))
    tables = []
    for no, yes in ((0, 1), (False, True), ("no", "yes")):
        frame = pa.table({f"c{i}": [yes if v else no for v in pattern[:, i]] for i in range(3)})
        tables.append(make_table(frame, propose(frame).schema))
    for one, other in itertools.combinations(tables, 2):
        assert np.array_equal(one.codes, other.codes)
        plain = [
            dataclasses.replace(c, categories=("a", "b"), dtype="string")
            for t in (one, other)
            for c in t.schema.columns
        ]
        assert plain[:3] == plain[3:]
    assert isinstance(tables[0].schema, Schema)
