"""The invented hospitals have what real ones have: dates, gaps, zeros, an id, a target, and differences between them."""

import numpy as np
import pytest

from populace.tables.hospitals.records import SIZES, frames, write_files
from populace.tables.schema import load_schema
from populace.tables.table import make_table, read_frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("hospitals")
    write_files(place)
    return place


def test_the_dictionary_covers_every_value_and_was_not_read_from_the_rows(folder):
    schema = load_schema(folder / "hospitals.toml")
    assert schema.read_from_data == ()
    assert schema.target == "readmitted"
    assert [other.name for other in schema.others] == ["stay"]
    assert {column.kind for column in schema.columns} == {"date", "categorical", "boolean", "integer", "decimal"}
    for name, rows in SIZES.items():
        table = make_table(read_frame(folder / f"{name}.csv"), schema)
        assert len(table) == rows
        assert not [remark for remark in table.remarks if "outside" in remark]


def test_the_rows_are_those_of_hospitals():
    stays = {name: frame.to_pandas() for name, frame in frames().items()}
    every = [stay for frame in stays.values() for stay in frame.stay]
    assert len(set(every)) == len(every) == sum(SIZES.values())
    for frame in stays.values():
        assert 0.6 < (frame.costs == 0).mean() < 0.8
        assert 0.05 < frame.crp.isna().mean() < 0.5
        assert 0.02 < frame.smoker.isna().mean() < 0.3
        assert (frame.born <= frame.admitted).all()
        assert (frame.sex[frame.ward == "maternity"] == "female").all()
        assert 0.1 < frame.readmitted.mean() < 0.4
    geriatric = {name: (frame.ward == "geriatrics").mean() for name, frame in stays.items()}
    assert geriatric["hill"] > 4 * geriatric["harbour"]


def test_they_are_the_same_every_time():
    first, again = frames(), frames()
    assert all(first[name].equals(again[name]) for name in SIZES)
    hill = first["hill"]
    assert hill.column("stay")[0].as_py() == "HI000001"
    assert int(np.sum(hill.column("days").to_numpy())) == 35_883  # the draws are numpy's in every version
