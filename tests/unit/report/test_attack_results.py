"""Attack and audit files: absent, damaged, or read; never passed over."""

from populace.report.attack_results import PROVES_NOTHING, commands, read_attacks, read_audit
from populace.runs.folder import RunFolder
from populace.tables.files import write_json


def test_absent_damaged_and_whole_files(tmp_path):
    path = tmp_path / "audit.json"
    assert read_audit(path) is None
    for damaged in ([1], {"rows": "many"}):
        write_json(path, damaged)
        assert "run it again" in read_audit(path)["damaged"]
    write_json(path, {"claimed": {}, "rows": []})
    assert read_audit(path)["rows"] == []
    write_json(tmp_path / "attacks.json", {"membership": {"accuracy": 0.5}})
    found = read_attacks(tmp_path / "attacks.json")
    assert found["attribute"] == {}
    assert found["membership"]["accuracy"] == 0.5


def test_what_was_not_run_has_a_command(tmp_path):
    found = commands({"folder": RunFolder(tmp_path / "run")}, "people and towns.csv")
    assert found["attack"].endswith("run --real 'people and towns.csv'")
    assert found["audit"].startswith("populace audit ")
    person = commands({"details": {"spec": {"person": "patient"}}}, "people.csv")  # which `populace attack` refuses
    assert (person["attack"], person["no_attack"]) == ("", "Runs with --person cannot be attacked yet.")
    assert "50 %" in PROVES_NOTHING
    assert "proves nothing" in PROVES_NOTHING


def test_results_in_another_form_are_said_to_be_damaged(tmp_path):
    wrong = (
        [],
        {"membership": []},
        {"membership": {"rows": [1]}},
        {"attribute": 5},
        {"notes": "x"},
        {"distances": [1]},
    )
    for document in wrong:
        write_json(tmp_path / "attacks.json", document)
        assert "damaged" in read_attacks(tmp_path / "attacks.json")
    for document in ({"rows": {}}, {"rows": [5]}, {"rows": [], "notes": 3}):
        write_json(tmp_path / "audit.json", document)
        assert "damaged" in read_audit(tmp_path / "audit.json")
