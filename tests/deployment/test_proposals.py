"""What a federation proposes, and the limit a site joins with: refused in one sentence that says what to do."""

import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.tables.files import read_json
from populace.tables.universal import open_schema, with_lists

pytest.importorskip("nvflare")


def test_categories_found_in_another_run_are_refused(small_table, tmp_path, capsys):
    with_lists(open_schema(small_table.frame), []).save(tmp_path / "found.toml")
    words = ["federation", "init", tmp_path / "f", "--name", "f", "--schema", tmp_path / "found.toml", "--epsilon", "1"]
    assert call([str(word) for word in words]) == 2
    assert "were found in the data of another run" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


def test_a_limit_that_is_too_low_names_what_to_raise(small_table, tmp_path, capsys):
    """The documented steps, with a limit that has no delta."""
    study, ward, schema = tmp_path / "study", tmp_path / "ward", tmp_path / "s.toml"
    small_table.schema.save(schema)
    pq.write_table(small_table.frame, tmp_path / "ward.parquet")
    words = ["federation", "init", study, "--name", "study", "--schema", schema, "--epsilon", "1", "--method", "census"]
    assert call([str(word) for word in words]) == 0
    assert call(["site", "request", str(ward), "--name", "ward", "--org", "o", "--federation", "study"]) == 0
    assert call(["federation", "approve", str(study), str(ward / "request/key/ward.request.zip")]) == 0
    fingerprint = read_json(study / "federation.json")["fingerprint"]
    words = ["site", "join", ward, study / "sites/ward.signed.zip", "--fingerprint", fingerprint, "--proposal",
             study / "study.proposal.json", "--data", tmp_path / "ward.parquet", "--epsilon", "1"]  # fmt: skip
    assert call([str(word) for word in words]) == 2
    assert "; raise --delta, or do not join" in capsys.readouterr().err
