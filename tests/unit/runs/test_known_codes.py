"""Categories that are small whole numbers need no list: rare ones are kept, and codes that nobody has do not appear."""

import collections

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.runs import domains
from populace.runs.ledger.history import NOWHERE
from populace.runs.run import synthesize
from populace.runs.spec import make_spec
from populace.tables.table import make_table
from populace.tables.universal import KNOWN_CODES, open_schema, released, with_lists

ROWS, SILOS = 6_000, 20
COMMON, RARE = range(1, 11), range(11, 31)
LONG, LONE = 700, 950  # beyond the known ones: one that many have, one that few have
SMALL = {"components": 3, "members": 2, "fit_steps": 10, "prior_precision": 1.0, "trust": "central"}


def admissions():
    """Ten common codes, twenty that one record in a hundred has, and two large ones."""
    rng = np.random.default_rng(0)
    rest = [np.repeat(RARE, 60), np.full(1_500, LONG), np.full(4, LONE)]
    common = rng.integers(COMMON[0], COMMON[-1] + 1, ROWS - sum(map(len, rest)))
    codes = rng.permutation(np.concatenate([*rest, common]))
    return pa.table({
        "admission_code": codes, "age": rng.integers(18, 95, ROWS), "ill": rng.choice(["no", "yes"], ROWS).tolist(),
    })  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs with other noise: how often each code was drawn, and what the silos' lists named."""
    folder = tmp_path_factory.mktemp("codes")
    pq.write_table(admissions(), folder / "rows.parquet")
    draw, named, drawn = domains._drawn, [], []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(domains, "_drawn", lambda *given: named.append(draw(*given)) or named[-1])
        for seed in range(3):
            asked = {
                "epsilon": 4.0,
                "delta": 1e-6,
                "records_per_client": ROWS // SILOS,
                "rows": 10,
                "target": "ill",
                "seed": seed,
            }
            spec = make_spec(data=str(folder / "rows.parquet"), method="census", settings=SMALL, **asked)
            run = synthesize(spec, folder / str(seed), keeping=NOWHERE)
            rows = run.sample(ROWS, seed=1).to_arrow()
            drawn.append(collections.Counter(rows.column("admission_code").to_pylist()))
    return drawn, [{int(code) for one in lists for code in one["admission_code"]} for lists in named]


def test_codes_that_no_list_names_keep_their_rows(runs):
    for drawn, named in zip(*runs, strict=True):
        assert not named & set(RARE)  # a silo has three records of each: with lists alone all would be lost
        kept = [drawn[code] for code in RARE]
        assert sum(count > 0 for count in kept) >= len(RARE) - 1
        assert sum(kept) == pytest.approx(60 * len(RARE), rel=0.3)
        for code in COMMON:
            assert 200 < drawn[code] < 500


def test_codes_that_nobody_has_do_not_appear(runs):
    """Noise alone shows one of a thousand codes, of which there are about a hundred; a row of them is rarely drawn."""
    drawn, _ = runs
    wrong = [[code for code in one if code not in {*COMMON, *RARE, LONG}] for one in drawn]
    assert sum(map(len, wrong)) <= 2
    assert None not in {code for one in drawn for code in one}


def test_codes_beyond_the_known_ones_are_listed_or_go_to_the_rest(runs):
    for drawn, named in zip(*runs, strict=True):
        assert LONG in named
        assert drawn[LONG] == pytest.approx(1_500, rel=0.2)
        assert LONE not in named
        assert LONE not in drawn


def test_every_small_code_has_a_place_before_any_list_and_large_ones_share_one():
    rows = pa.table({"type_id": np.array([0, 5, KNOWN_CODES - 1, KNOWN_CODES, 70_000, -4] * 50)})
    schema = open_schema(rows, target="type_id")
    (column,) = released(schema)
    assert column.categories == (*map(str, range(KNOWN_CODES)), "-1")
    table = make_table(rows, schema)
    assert table.codes[:6, 0].tolist() == [0, 5, KNOWN_CODES - 1, KNOWN_CODES, KNOWN_CODES, KNOWN_CODES]
    assert table.clipped == {"type_id": 150}
    listed = make_table(rows, with_lists(schema, [{"type_id": {"70000": 50}}]))
    assert listed.codes[:6, 0].tolist() == [0, 5, KNOWN_CODES - 1, KNOWN_CODES + 1, KNOWN_CODES, KNOWN_CODES + 1]
    assert listed.clipped == {"type_id": 100}
