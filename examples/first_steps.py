"""From a table to synthetic rows and a report, in one page of Python. Run by the tests."""

import sys
from pathlib import Path

import populace as pop
from populace.tables.embedded import harbour


def main(folder: Path) -> None:
    people = harbour()  # invented people; yours: a pandas, polars or Arrow table, or the path of a file
    run = pop.synthesize(people, epsilon=4, target="income", method="independent", rows=500, seed=0)
    print(f"by {run.method}")
    print(run.statement)  # the guarantee line by line, and what other runs on the same data add to it
    synthetic = run.sample(2_000, seed=1)
    print(synthetic.to_pandas().head(3))
    run.save(folder / "run")  # pop.load_run(folder / "run") has it again
    pop.evaluate(run, real=people, target="income").save(folder / "report.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
