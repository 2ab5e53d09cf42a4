"""Smaller findings: said where no red flag says it, with the number of rows."""

import numpy as np

from populace.evaluation.evaluate import hiding_column
from populace.evaluation.flags import red_flags
from populace.evaluation.remarks import remarks
from populace.evaluation.value_figures import RealValues
from populace.evaluation.values import Categories, Numbers, ValueTable

ROWS = 4000
LABELS = ("a", "b", "c", "(other)")


def table(numbers, codes):
    return ValueTable(
        rows=ROWS,
        numbers=(Numbers(name="visits", kind="integer", values=numbers.astype(float)),),
        categories=(Categories(name="race", kind="categorical", labels=LABELS, codes=codes),),
    )


def found(numbers, codes, real_numbers=None):
    rng = np.random.default_rng(0)
    visits = rng.integers(0, 10, ROWS) if real_numbers is None else real_numbers
    race = rng.choice(3, ROWS, p=(0.6, 0.397, 0.003))
    comparison = RealValues(table(visits, race), np.arange(ROWS) % 2 == 0).compare(table(numbers, codes))
    flags = red_flags(comparison)
    return [flag.sentence for flag in flags], remarks(comparison, flags)


def drawn(seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 10, ROWS), rng.choice(3, ROWS, p=(0.6, 0.397, 0.003))


def test_good_rows_leave_nothing_to_say():
    assert found(*drawn()) == ([], [])


def test_impossible_values_and_lost_and_new_categories_are_said():
    numbers, codes = drawn()
    numbers[:23] = -6
    codes = np.where(codes == 2, 1, codes)
    codes[:120] = 3
    flags, said = found(numbers, codes)
    assert flags == []
    assert said == [
        "visits: 23 synthetic rows lie outside the range of the real rows, 0 to 9 (synthetic: -6 to 9)",
        "race: 1 value that 0.4 % of the real rows have is in no synthetic row: c",
        "race: 3.0 % of the synthetic rows have a value that no real row has: (other)",
    ]


def test_what_is_flagged_is_not_said_twice():
    numbers, codes = drawn()
    numbers[:400] = -6
    flags, said = found(numbers, np.where(codes == 2, 3, codes))
    assert any("outside the real range" in flag for flag in flags)
    assert not any("range" in line for line in said)


def test_an_sd_that_a_few_values_make_is_said_and_not_flagged():
    numbers, codes = drawn()
    far = numbers.copy()
    far[:3] = (300, 200, 250)
    flags, said = found(numbers, codes, far)
    assert flags == []
    (line,) = said
    assert line.startswith("visits: the SD 7.")
    assert line.endswith("a few far values make most of it, so that chance may do this")


def test_the_column_that_hides_dependence_is_named():
    halves, product = np.full((4, 4), 0.02), np.full((4, 4), 0.10)
    names = ("a", "b", "codes", "d")
    assert hiding_column(halves, product, names) == ""
    halves[2, :] = halves[:, 2] = 0.5
    assert hiding_column(halves, product, names) == "codes"
    assert hiding_column(np.full((4, 4), 0.5), product, names) == ""
    assert hiding_column(halves[1:3, 1:3], product[1:3, 1:3], names[1:3]) == ""
