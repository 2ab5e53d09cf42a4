"""Conditions on drawn rows: sets, ranges, balanced classes; the same distribution as drawing and throwing away."""

import jax
import numpy as np
import pyarrow as pa
import pytest

from populace.errors import DataError, PopulaceError, SpecError
from populace.methods.blocks.conditions import split_condition, wanted_rows
from populace.methods.blocks.generator import Generator
from populace.runs.sampling import condition_texts, draw
from populace.tables.schema import Column, Schema

SCHEMA = Schema(
    columns=(
        Column(name="age", kind="integer", edges=(20, 30, 40, 60, 80), nullable=True),
        Column(name="ward", kind="categorical", categories=("A", "B", "B,C", "D")),
        Column(name="admitted", kind="date", edges=(19_723, 19_783, 19_844)),  # 2024: January, March, May
        Column(name="grade", kind="ordinal", categories=("low", "mid", "high")),
        Column(name="died", kind="boolean", categories=("false", "true"), dtype="boolean"),
        Column(name="a>b", kind="categorical", categories=("x", "y")),
        Column(name="dose", kind="decimal", edges=(0.0, 5.0, 10.0), spikes=(7.0,)),
        Column(name="said", kind="categorical", categories=('"well", A', 'a"b', "B", "C", "B,C", " x "), nullable=True),
    )
)
SHARES = (
    (0.3, 0.3, 0.2, 0.1, 0.1),
    (0.4, 0.3, 0.2, 0.1),
    (0.5, 0.5),
    (0.2, 0.3, 0.5),
    (0.999, 0.001),
    (0.5, 0.5),
    (0.4, 0.3, 0.3),
    (0.1, 0.1, 0.2, 0.1, 0.1, 0.1, 0.3),
)
AGES_AND_WARDS = np.outer(SHARES[0], SHARES[1])
AGES_AND_WARDS[2:] = np.outer(SHARES[0][2:], SHARES[1][::-1])  # from 40 on the rare wards are the frequent ones


class Plain(Generator):
    """Columns with known shares; ward depends on age, the others on nothing."""

    schema = SCHEMA
    given: tuple = ()

    def exact_conditions(self, conditions):
        return conditions

    def sample_codes(self, count, key, conditions):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        type(self).given = tuple(sorted(conditions.items()))
        codes = np.stack(
            [
                np.full(count, conditions[j]) if j in conditions else rng.choice(len(p), count, p=p)
                for j, p in enumerate(SHARES)
            ],
            axis=1,
        )
        pairs = AGES_AND_WARDS.copy()
        for column in set(conditions) & {0, 1}:
            pairs[np.indices(pairs.shape)[column] != conditions[column]] = 0
        drawn = rng.choice(pairs.size, count, p=(pairs / pairs.sum()).ravel())
        codes[:, 0], codes[:, 1] = np.unravel_index(drawn, pairs.shape)
        return codes

    def arrays(self):
        return {}

    @classmethod
    def from_arrays(cls, schema, arrays):
        return cls()


def rows(count=3_000, **options):
    return draw(Plain(), count, jax.random.key(3), **options).frame


def values(frame, name):
    return set(frame.column(name).to_pylist())


def test_ranges_hold_to_the_day_and_the_year():
    frame = rows(where=["age>=35", "age<62", "admitted=2024-01-15..2024-03-10"])
    assert values(frame, "age") == set(range(35, 62))
    days = [day.isoformat() for day in frame.column("admitted").to_pylist()]
    assert (min(days), max(days)) == ("2024-01-15", "2024-03-10")
    assert values(rows(where="age=40..41"), "age") == {40, 41}
    assert values(rows(where="age>78"), "age") == {79, 80}
    assert max(values(rows(where="age=..25"), "age")) == 25
    assert min(values(rows(where="age=61.."), "age")) == 61
    assert values(rows(where="grade>=mid"), "grade") == {"mid", "high"}


def test_what_is_kept_has_the_models_distribution():
    """Wards depend on ages: where this is lost, A is 0.51 of A and B at every age, and 0.6 of the rows in D are under 40."""
    for where, share in ((["age<40", "ward=A,B"], 4 / 7), (["age>=40", "ward=A,B"], 1 / 3)):
        frame = rows(20_000, where=where)
        ages, wards = (np.array(frame.column(name).to_pylist()) for name in ("age", "ward"))
        assert abs(np.mean(wards == "A") - share) < 0.015
    assert abs(np.mean(ages < 60) - 2 / 3) < 0.015
    for where in ("ward=D", 'ward!=A,B,"B,C"'):
        ages = rows(20_000, where=[where, "age>=20"]).column("age").to_pylist()
        assert abs(np.mean(np.array(ages) < 40) - 0.06 / (0.06 + 0.3 * 0.4)) < 0.015


def test_sets_of_values_and_all_but_one():
    assert values(rows(where="ward=A, D"), "ward") == {"A", "D"}
    assert values(rows(where="ward=B,C"), "ward") == {"B,C"}  # a value with a comma in it
    assert values(rows(where='ward="B,C",D'), "ward") == {"B,C", "D"}
    assert values(rows(where={"ward": ["B,C", "A"]}), "ward") == {"B,C", "A"}
    assert values(rows(where="ward!=A"), "ward") == {"B", "B,C", "D"}
    assert values(rows(where=["ward!=A", "ward!=D", "a>b=y"]), "ward") == {"B", "B,C"}
    assert values(rows(where="a>b=y"), "a>b") == {"y"}
    assert None not in values(rows(where="age>=20"), "age")
    assert values(rows(where={"died": True, "age": "30..39"}), "died") == {True}


def test_numbers_and_dates_are_themselves_and_cells_are_meant_by_their_label():
    assert values(rows(where="age=42"), "age") == {42}
    assert values(rows(where={"age": [41, 45, 70]}), "age") == {41, 45, 70}
    assert values(rows(where=["age!=42,43", "age=41..44"]), "age") == {41, 44}
    assert values(rows(where={"age": ["[40, 60)", 22, "(no value)"]}), "age") == {None, 22, *range(40, 60)}
    assert {day.isoformat() for day in values(rows(where="admitted=2024-02-29"), "admitted")} == {"2024-02-29"}
    assert values(rows(where={"dose": 7}), "dose") == {7.0}
    assert 7.0 not in values(rows(where=["dose!=7,2.5", "dose>=5"]), "dose")
    ages = np.array(rows(20_000, where="age=25,45").column("age").to_pylist())
    assert abs(np.mean(ages == 25) - (0.3 / 10) / (0.3 / 10 + 0.2 / 20)) < 0.015
    table = Plain().sample(50, jax.random.key(0), {"age": "42", "said": "B,C"}).frame
    assert (values(table, "age"), values(table, "said")) == ({42}, {"B,C"})


def test_no_value_meets_no_inequality():
    """As in SQL."""
    assert None in values(rows(), "age") & values(rows(), "said")
    for where in ("said!=C", "said!=null", "age!=42", "age!=null", "age!=[20, 30)"):
        assert None not in values(rows(where=where), where.split("!")[0])
    assert values(rows(where="said=C,null"), "said") == {"C", None}


def test_values_of_a_mapping_are_taken_as_they_are():
    for said in (['"well", A'], ['"well", A', 'a"b'], ['a"b'], ["B", "C"], [" x ", "B,C"]):
        assert values(rows(where={"said": said}), "said") == set(said)
        assert values(rows(where={"said": said[0]}), "said") == {said[0]}


def test_what_the_model_can_be_given_is_drawn_exactly_however_rare():
    assert len(rows(50_000, where=["died=true", "ward=D"])) == 50_000
    assert Plain.given == ((1, 3), (4, 1))
    rows(100, where=["age>=45", "age<=50", "died=true"])  # one cell is left: it is given too
    assert Plain.given == ((0, 2), (4, 1))


def test_seeds_repeat_and_conditions_do_not_change_what_was_drawn_before():
    assert rows(500, where="age>=40").equals(rows(500, where="age>=40"))
    assert rows(500, balance="ward").equals(rows(500, balance="ward"))
    plain = Plain().sample(400, jax.random.key(3), {"ward": "A"}).frame
    assert rows(400, where="ward=A").equals(plain)


def test_classes_are_balanced():
    for options, expected in (
        ({"balance": "ward"}, {"A": 251, "B": 251, "B,C": 250, "D": 250}),
        ({"balance": "ward", "where": "ward!=A"}, {"B": 334, "B,C": 334, "D": 334}),
        ({"balance": "died"}, {True: 501, False: 501}),
        ({"balance": "died=0.3"}, {True: 301, False: 701}),
        ({"balance": "died=true:0.3"}, {True: 301, False: 701}),
    ):
        name = next(iter(options.values())).split("=")[0]
        column = rows(1_002, **options).column(name).to_pylist()
        assert {value: column.count(value) for value in set(column)} == expected
    column = rows(1_000, balance=["ward=D:0.5", "ward=B:0.25"], where="age>=40").column("ward").to_pylist()
    assert (column.count("D"), column.count("B")) == (500, 250)
    assert 30 < column.count("A") < column.count("A") + column.count("B,C") == 250
    assert column[:10] != sorted(column[:10]) or column[-10:] != sorted(column[-10:])  # mixed, not class after class


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": ["age>=50", "age<45"]}, "no row can meet all conditions on 'age'"),
        ({"where": ["age>45", "age<=45"]}, "no row can meet"), ({"where": ["age>40", "age<41"]}, "no row can meet"),
        ({"where": ["age=41,45", "age!=41,45"]}, "no row can meet"), ({"where": ["age=41", "age>=42"]}, "no row can meet"),
        ({"where": ["age=40..41", "age!=40,41"]}, "no row can meet"), ({"where": "dose=2.5"}, "holds any number, of which 2.5"),
        ({"where": "age>=90"}, r"no age>=90 in this model: its cells go from \[20, 30\) to \[60, 80\]"),
        ({"where": "ward>=B"}, "the values of column 'ward' have no order"),
        ({"where": "age>=old"}, "expected age>= with a value of the kind integer behind it, got 'old'"),
        ({"where": "ward=Z,A"}, "column 'ward' has no value 'Z'"), ({"where": "nothing"}, "expected a condition such as"),
        ({"where": "height>=3"}, "height"), ({"where": 7}, "expected where as a text"),
        ({"where": ["ward=A", "ward=B"]}, "leave no value"), ({"balance": "age"}, "has a scale and no classes"),
        ({"balance": "ward=0.3"}, "has 4 values: say whose share it is"), ({"balance": "died=true:3"}, r"a share in \[0, 1\]"),
        ({"balance": ["ward=A:0.7", "ward=B:0.7"]}, "add up to at most 1"),
        ({"balance": ["ward=A:0.1", "died=0.2"]}, "one can be"),
        ({"balance": ["ward", "died"]}, r"one column can be balanced, and --balance is given 2 times \(ward, died\)"),
        ({"balance": ["ward", "died=0.2"]}, "one column can be balanced"),
        ({"balance": ["ward=A:0.1", "ward=A:0.2"]}, "two shares"), ({"balance": "height"}, "height"),
        ({"balance": "died", "where": "died=true"}, None),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(options, said):
    if said is None:  # one value is left: all rows have it
        assert values(rows(20, **options), "died") == {True}
        return
    with pytest.raises(PopulaceError, match=said):
        rows(10, **options)


def test_a_range_that_is_too_rare_says_how_rare():
    class Rare(Plain):
        def sample_codes(self, count, key, conditions):
            codes = super().sample_codes(count, key, conditions)
            codes[:, 0] = 0
            return codes

    with pytest.raises(DataError, match=r"too rare: 0 of 1,048,576 drawn rows meet them, fewer than one in 10,000"):
        draw(Rare(), 10, jax.random.key(0), where="age>=35")


def test_conditions_are_split_at_the_longest_name():
    assert split_condition("a>b=x", SCHEMA.names) == ("a>b", "=", "x")
    assert split_condition("age >= 40", SCHEMA.names) == ("age", ">=", "40")
    assert condition_texts({"a": 1, "b": [True, "x"]}) == ["a=1", 'b="true","x"']
    with pytest.raises(SpecError):
        split_condition("age", SCHEMA.names)
    wanted = wanted_rows(SCHEMA, ["age>=35"])
    assert wanted.meets(np.array([[1, 0, 0, 0, 0, 0]] * 2), pa.table({"age": [34, 35]})).tolist() == [False, True]
