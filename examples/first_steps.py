"""From a table to synthetic rows and a report, in one page of Python. Run by the tests."""

import sys
from pathlib import Path

import populace as pop
from populace.tables.embedded import harbour


def main(folder: Path) -> None:
    table = harbour()  # invented people; yours: pop.read_table("people.csv", schema="people.toml")
    clients = pop.split(table, records_per_client=1)
    run = pop.simulate(pop.Poll(epsilon=4), clients, seed=0)
    print(run.guarantee)
    synthetic = run.sample(2_000, seed=1)
    print(synthetic.frame.slice(0, 3).to_pylist())
    pop.evaluate(synthetic, real=table).save(folder / "report.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
