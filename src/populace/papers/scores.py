"""The quality of synthetic images, as DPD-fVAE's tables measure it: three classifiers and a distance."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from populace.evaluation.cnn import Cnn
from populace.evaluation.dense import Logistic, Mlp
from populace.evaluation.images import frechet
from populace.papers.grid import Benchmark, benchmark_of
from populace.tables import datasets
from populace.tables.images import Images
from populace.types import JsonObject, NumpyArray

BATCH = 128
FEATURES = 10_000  # images whose features a Frechet distance is taken from
TINY = 1e-12


@functools.lru_cache(maxsize=4)
def load(data: str, part: datasets.Split) -> Images:
    """The images of a data set, read once."""
    return datasets.load_images(data, part)


def prepare(data: str) -> None:
    """Both parts are there, or what is missing is said."""
    load(data, "train")
    load(data, "test")


def flat(images: Images) -> NumpyArray:
    return images.x.reshape(len(images), -1).astype(np.float32) / 255


def shaped(images: Images) -> NumpyArray:
    return images.x.reshape(*images.x.shape[:3], -1).astype(np.float32) / 255


def scores(sets: Sequence[Images], data: str, *, steps: int, images: int, tested: int, seed: int) -> JsonObject:
    """Accuracies on the test images, averaged over the sets, and the Frechet distance of the first.

    `steps` are those of a classifier's training; the CNN whose features measure the distance sees `images` real ones.
    """
    test = first_images(load(data, "test"), tested)
    found = accuracies(sets, test, steps=steps, seed=seed)
    return {**found, "frechet": frechet_distance(sets[0], test, reference_cnn(load(data, "train"), images, steps))}


def accuracies(sets: Sequence[Images], test: Images, *, steps: int, seed: int) -> JsonObject:
    """Accuracies of three classifiers, trained on each set and tested on the test images, averaged over the sets."""
    each: dict[str, list[float]] = {"logistic": [], "mlp": [], "cnn": []}
    for number, made in enumerate(sets):
        models: dict[str, tuple[Any, Any]] = {
            "logistic": (Logistic(), flat),
            "mlp": (Mlp(steps=steps, seed=seed + number), flat),
            "cnn": (Cnn(steps=steps, batch=BATCH, seed=seed + number), shaped),
        }
        for name, (model, seen) in models.items():
            model.fit(seen(made), made.y)
            guesses = model.classes_[model.predict_proba(seen(test)).argmax(axis=1)]
            each[name].append(float((guesses == test.y).mean()))
    return {
        **{name: float(np.mean(values)) for name, values in each.items()},
        "cnn_of_sets": [round(value, 4) for value in each["cnn"]],
    }


def first_images(images: Images, most: int = FEATURES) -> Images:
    """The first `most` images, or all."""
    return images.take(np.arange(min(most, len(images))))


def frechet_distance(made: Images, test: Images, by: Cnn) -> float:
    """The Frechet distance on the features of a CNN trained on real images."""
    return frechet(by.features(shaped(test)), by.features(shaped(first_images(made))))


def class_coverage(made: Images, by: Cnn, classes: int) -> JsonObject:
    """Shares of the classes that a CNN sees, the smallest of them, and the score exp(E KL(p(y|x) || p(y)))."""
    posteriors = by.predict_proba(shaped(first_images(made)))
    shares = np.bincount(by.classes_[posteriors.argmax(axis=1)], minlength=classes) / len(posteriors)
    ratio = np.log(posteriors + TINY) - np.log(posteriors.mean(axis=0) + TINY)
    inception = float(np.exp((posteriors * ratio).sum(axis=1).mean()))
    return {"coverage": float(shares.min()), "shares": np.round(shares, 4).tolist(), "inception": inception}


@functools.lru_cache(maxsize=2)
def reference_cnn(train: Images, images: int, steps: int) -> Cnn:
    """The CNN of appendix C.2 trained on so many of the real training images: its features measure Frechet distances."""
    some = train.take(np.random.default_rng(4).permutation(len(train))[:images])
    return Cnn(steps=steps, batch=BATCH).fit(shaped(some), some.y)


def text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def on_images(module: str, data: str, name: str, title: str, reference: str, revision: int = 1) -> Benchmark:
    """The benchmark of a module on one of the image data sets; the module's functions take the data's name first."""
    return benchmark_of(
        module,
        data,
        name=name,
        title=title,
        reference=reference,
        revision=revision,
        prepare=functools.partial(prepare, data),
    )
