"""Three hospitals, one table each: a method with its settings, what to expect beforehand, and the run. Run by the tests."""

import sys
from pathlib import Path

import populace as pop
from populace.tables.embedded import harbour


def main(folder: Path) -> None:
    people = harbour().to_pandas()  # invented people
    wards = [people[:1_500], people[1_500:2_400], people[2_400:]]

    # A list of tables is a list of silos. Under a method that protects records each is one client, which adds its own noise.
    method = pop.methods.Moments(epsilon=4)
    schema = pop.split(people).data.schema  # proposed from the rows; declare yours: pop.load_schema("people.toml")
    expected = pop.plan(method, clients=len(wards), records_per_client=2_000, schema=schema)
    print(f"{expected.rounds} round, {expected.bytes_up:,.0f} bytes from each silo")

    run = pop.synthesize(wards, method=method, schema=schema, rows=500, seed=0)
    print(run.details["split"])
    print(run.guarantee)
    run.save(folder / "silos")

    # Under a local method every row is a person who answers for itself, whichever table the row stands in.
    local = pop.synthesize(wards, method="independent", epsilon=4, schema=schema, rows=500, seed=0)
    print(f"{local.details['clients']:,} clients, {local.guarantee.bound}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
