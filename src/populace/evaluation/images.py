"""The quality of synthetic images: classes covered, classifiers trained on them, and a Frechet distance.

class distance       total variation distance of the shares of the classes
class coverage       share of the real classes that have at least a tenth of their share among the synthetic images, by label
AUC, accuracy        classifiers trained on synthetic images, tested on real ones: logistic regression, an MLP of 100 units and
                     the CNN of DPD-fVAE's appendix C.2
Frechet distance     |m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) over the hidden layer of an MLP trained on real images.
                     Named so because it is not the distance of Inception features that "FID" stands for.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from populace.errors import DataError
from populace.evaluation import prediction
from populace.evaluation.baselines import MAJORITY, NO_ROWS, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.cnn import Cnn
from populace.evaluation.estimate import FROM_ROWS, FROM_TESTS, Estimate, from_influence, left_out
from populace.evaluation.evaluate import WARNING
from populace.evaluation.prediction import Epochs, Score
from populace.tables.images import Images
from populace.types import JsonObject, NumpyArray

MOST_IMAGES = 5_000  # of each kind, drawn at random, for classifiers and features
GROUPS = 20  # of the jackknife
CNN_STEPS, CNN_BATCH = 400, 64
BATCH, EPOCHS, LEAST_STEPS = 128, 12, 200  # of the MLP
TITLES: dict[str, tuple[str, str]] = {
    "class_distance": ("distance of the shares of the classes", "lower"),
    "class_coverage": ("share of the classes covered", "higher"),
    "frechet": ("Frechet distance, features of an MLP trained on real images", "lower"),
    **{f"{what}: {m}": (f"{title}, {m}", "higher") for what, title in (("auc", "AUC"), ("accuracy", "accuracy"))
       for m in ("logistic regression", "MLP", "CNN")},
}  # fmt: skip
ABOUT = {
    REAL: "distances: a random half of the real images against the other half; prediction: trained on real images",
    PRODUCT: "every pixel drawn from its own true table over all images, independently of the others and of the label",
    SHUFFLED: "a random half of the real images with their labels shuffled, against the other half",
    MAJORITY: "always guesses the most frequent class; makes no images",
}


def evaluate_images(synthetic: Images, real: Images, *, seed: int = 0) -> JsonObject:
    """All figures of synthetic images against real ones, beside their baselines, as one document."""
    if synthetic.shape != real.shape:
        raise DataError(f"expected synthetic images of shape {real.shape}, got {synthetic.shape}")
    if len(real) < 20 or len(synthetic) < 2:
        raise DataError(f"expected at least 20 real and 2 synthetic images, got {len(real)} and {len(synthetic)}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(real))
    first, second = real.take(order[: len(real) // 2]), real.take(order[len(real) // 2 :])
    tables = {
        SYNTHETIC: synthetic,
        REAL: first,
        PRODUCT: _independent_pixels(real, rng),
        SHUFFLED: _relabelled(first, rng),
    }
    classes = max(real.classes, synthetic.classes)
    against = {name: (second if name in (REAL, SHUFFLED) else real) for name in tables}
    figures: dict[str, dict[str, Estimate]] = {
        "class_distance": {name: _class_distance(against[name], found, classes) for name, found in tables.items()},
        "class_coverage": {name: _coverage(against[name], found, classes) for name, found in tables.items()},
    }
    for found in figures.values():
        found[MAJORITY] = left_out(NO_ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        figures["frechet"] = _frechet_distances(tables, first, second, rng)
        figures |= _scores(tables, first, second, seed)
    metrics = {
        key: {
            "title": title,
            "better": better,
            "interval": FROM_TESTS if ":" in key else FROM_ROWS,
            "values": {name: figures[key][name].to_json() for name in (SYNTHETIC, *ABOUT)},
        }
        for key, (title, better) in TITLES.items()
    }
    missing = {
        f"{TITLES[key][0]}; {name}": found.why
        for key, values in figures.items()
        for name, found in values.items()
        if not found.known
    }
    return {
        "format": 2,
        "kind": "images",
        "warning": WARNING,
        "rows": {"synthetic": len(synthetic), "real": len(real)},
        "classes": {
            who: np.bincount(of.y, minlength=classes).tolist() for who, of in (("real", real), ("synthetic", synthetic))
        },
        "baselines": ABOUT,
        "metrics": metrics,
        "prediction": {"models": ["logistic regression", "MLP", "CNN"], "target": "the class",
                       "tested_on": f"{min(len(second), MOST_IMAGES):,} real images of the other half",
                       "trained_on": f"at most {MOST_IMAGES:,} images"},
        "left_out": missing,
    }  # fmt: skip


def _independent_pixels(real: Images, rng: np.random.Generator) -> Images:
    chosen = real.take(np.sort(rng.permutation(len(real))[:MOST_IMAGES]))
    flat = rng.permuted(chosen.x.reshape(len(chosen), -1), axis=0)
    return Images(x=flat.reshape(chosen.x.shape), y=rng.permutation(chosen.y), classes=real.classes)


def _relabelled(real: Images, rng: np.random.Generator) -> Images:
    return Images(x=real.x, y=rng.permutation(real.y), classes=real.classes)


def _class_distance(real: Images, other: Images, classes: int) -> Estimate:
    shares = [np.bincount(of.y, minlength=classes) / len(of) for of in (real, other)]
    side = np.sign(shares[0] - shares[1]) / 2
    value = np.abs(shares[0] - shares[1]).sum() / 2
    return from_influence(value, side[real.y], -side[other.y], rows=[len(real), len(other)], most=1.0)


def _coverage(real: Images, other: Images, classes: int) -> Estimate:
    shares = [np.bincount(of.y, minlength=classes) / len(of) for of in (real, other)]
    present = shares[0] > 0
    covered = float((shares[1] >= shares[0] / 10)[present].mean())
    return Estimate(value=covered, why="by label; a count of classes, no interval")


def _flat(images: Images) -> NumpyArray:
    return images.x.reshape(len(images), -1).astype(np.float32) / 255


def _shaped(images: Images) -> NumpyArray:
    """[rows, height, width, channels] in [0, 1]."""
    return _flat(images).reshape(len(images), *images.shape, *([1] if len(images.shape) == 2 else []))


def _some(images: Images, seed: int) -> Images:
    return images.take(np.sort(np.random.default_rng(seed).permutation(len(images))[:MOST_IMAGES]))


def _mlp(rows: int, seed: int) -> Epochs:
    batch = min(BATCH, rows)
    epochs = max(EPOCHS, -(-LEAST_STEPS * batch // rows))  # of few images an epoch is a step or two
    return Epochs(MLPClassifier((100,), batch_size=batch, random_state=seed), epochs)


def _scores(tables: Mapping[str, Images], first: Images, second: Images, seed: int) -> dict[str, dict[str, Estimate]]:
    test = _some(second, seed)
    counts = prediction.resamples(len(test), seed)
    found: dict[str, dict[str, Score]] = {}
    for name, images in tables.items():
        some = _some(images, seed)
        models = {
            "logistic regression": (LogisticRegression(max_iter=60), _flat),
            "MLP": (_mlp(len(some), seed), _flat),
            "CNN": (Cnn(steps=CNN_STEPS, batch=CNN_BATCH, seed=seed), _shaped),
        }
        found[name] = {
            m: prediction.score_arrays(model, (seen(some), some.y), (seen(test), test.y), counts)
            for m, (model, seen) in models.items()
        }
    guess = np.bincount(first.y).argmax()
    constant = Score(
        accuracy=prediction.accuracy(test.y == guess, counts), auc=Estimate(value=0.5, why=prediction.CONSTANT)
    )
    found[MAJORITY] = dict.fromkeys(found[REAL], constant)
    return {
        f"{what}: {m}": {name: getattr(scores[m], what) for name, scores in found.items()}
        for what in ("auc", "accuracy")
        for m in found[REAL]
    }


def _frechet_distances(
    tables: Mapping[str, Images], first: Images, second: Images, rng: np.random.Generator
) -> dict[str, Estimate]:
    """Features come from an MLP trained on the first half; distances are to the second."""
    some = _some(first, 0)
    found = {MAJORITY: left_out(NO_ROWS)}
    if len(np.unique(some.y)) < 2:
        return found | dict.fromkeys(tables, left_out(prediction.ONE_CLASS))
    model = _mlp(len(some), 0)
    model.fit(_flat(some), some.y)
    real = _features(model.model, _flat(_some(second, 1)))
    for name, images in tables.items():
        few = min(len(images), len(second))
        if few < GROUPS:
            found[name] = left_out(f"expected at least {GROUPS} images on either side, got {few}")
            continue
        other = _features(model.model, _flat(_some(images, 2)))
        found[name] = _jackknife(real, other, rng)
    return found


def _features(model: Any, x: NumpyArray) -> NumpyArray:
    hidden: NumpyArray = np.maximum(x @ model.coefs_[0] + model.intercepts_[0], 0)
    return hidden.astype(np.float64)


def _jackknife(first: NumpyArray, second: NumpyArray, rng: np.random.Generator) -> Estimate:
    """The distance, and its interval from leaving out one of twenty groups of rows of each table at a time."""
    value = frechet(first, second)
    parts = [rng.permutation(len(of)) % GROUPS for of in (first, second)]
    kept = np.array([frechet(first[parts[0] != g], second[parts[1] != g]) for g in range(GROUPS)])
    error = float(np.sqrt((GROUPS - 1) / GROUPS * ((kept - kept.mean()) ** 2).sum()))
    return Estimate(value=value, low=max(0.0, value - 1.96 * error), high=value + 1.96 * error)


def frechet(first: NumpyArray, second: NumpyArray) -> float:
    """|m - m'|^2 + tr(C + C' - 2 (C^(1/2) C' C^(1/2))^(1/2))."""
    means = first.mean(axis=0) - second.mean(axis=0)
    a, b = (np.cov(of, rowvar=False).reshape(of.shape[1], -1) for of in (first, second))
    values, vectors = np.linalg.eigh(a)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ b @ root), 0)).sum()
    return max(0.0, float(means @ means + np.trace(a) + np.trace(b) - 2 * cross))
