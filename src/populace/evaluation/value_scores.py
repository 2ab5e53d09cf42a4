"""What benchmarks ask of synthetic rows, on their values: a handful of numbers, no baselines, no intervals."""

from __future__ import annotations

import math

from populace.evaluation.boosting import BOOSTING, boosting_scores
from populace.evaluation.flags import red_flags
from populace.evaluation.regression import r_squared
from populace.evaluation.targets import target_of
from populace.evaluation.value_figures import compare_two
from populace.tables.table import Table

KS_OF = "ks: "


def value_scores(synthetic: Table, real: Table, test: Table | None, target: str | None) -> dict[str, float]:
    """Figures on values of two tables under one schema; a figure that cannot be computed is NaN.

    worst_ks, mean_ks, ks: COLUMN        KS distances of the columns of numbers (`worst_column` names the worst)
    zero_share_error                     the largest error of the share of zeros, over columns that have a spike at zero
    missing_error                        the largest error of the share of missing values of a column of numbers
    mean_ratio: COLUMN                   synthetic mean over real mean
    wasserstein                          mean over columns, over the real SD
    pearson_error, spearman_error, cramers_v_error, group_means      mean absolute errors
    boosting_auc or boosting_r2          gradient boosting trained on the synthetic rows, on the test rows
    red_flags                            how many findings there are
    """
    comparison = compare_two(synthetic, real)
    estimates = comparison.estimates()
    columns = comparison.columns
    zeros = [column for column in columns if 0.0 in column.spikes]
    found = {
        "worst_ks": estimates["ks_worst"].value, "mean_ks": estimates["ks"].value,
        "zero_share_error": max((abs(c.real.share(0.0) - c.synthetic.share(0.0)) for c in zeros), default=0.0),
        "missing_error": max((abs(c.real.missing - c.synthetic.missing) for c in columns), default=0.0),
    }  # fmt: skip
    for key in ("wasserstein", "pearson_error", "spearman_error", "cramers_v_error", "group_means"):
        found[key] = estimates[key].value
    found["red_flags"] = float(len(red_flags(comparison)))
    for column in columns:
        found[f"{KS_OF}{column.name}"] = column.ks
        found[f"mean_ratio: {column.name}"] = (
            column.synthetic.mean / column.real.mean if column.real.mean else math.nan
        )  # fmt: skip
    if test is not None and target is not None:
        found |= _boosted(synthetic, real, test, target)
    return found


def worst_column(judged: dict[str, float]) -> str:
    """The column with the largest KS distance; empty where there is no column of numbers."""
    columns = {key.removeprefix(KS_OF): value for key, value in judged.items() if key.startswith(KS_OF)}
    return max(columns, key=lambda name: columns[name], default="")


def _boosted(synthetic: Table, real: Table, test: Table, target: str) -> dict[str, float]:
    kind = target_of(real, target)
    if kind.is_number:
        return {"boosting_r2": r_squared({"": synthetic}, test, kind, draws=1, models=(BOOSTING,))[""][BOOSTING].value}
    return {"boosting_auc": boosting_scores({"": synthetic}, test, kind, draws=1)[""].auc.value}
