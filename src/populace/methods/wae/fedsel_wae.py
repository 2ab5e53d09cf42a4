"""`fedsel-wae`: the published autoencoder trained by FedSel, the baseline that SignDS improves on.

The network, the local training and the rounds are those of DP-Fed-WAE's published recipe (Jiang, Zhou and Grossklags, PoPETs
2022). What a client tells of its update follows FedSel (Liu, Cao, Yoshikawa and Chen, DASFAA 2020) instead: one coordinate of
the largest in size, with half of epsilon, and one bit of its value, with the other half.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from populace.errors import out_of_range
from populace.methods.base import Facts, Population
from populace.methods.blocks.composed import ComposedMethod, Composition
from populace.methods.blocks.networks import Blocks, count_parameters
from populace.methods.blocks.schedules import Passes
from populace.methods.wae.autoencoders import DenseAutoencoder
from populace.methods.wae.training import AdamLearner, report_release
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.fedsel import FedSel


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedSelWae(ComposedMethod):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends `participations` reports of epsilon divided by
    that number, and its ledger refuses one more. Of each report the coordinate costs
    `selection_budget_share`, its value the rest.

    Edge cases: a client without records sends what a zero update gives. Values are clipped to what so many epochs of Adam can
    change, epochs times learning rate, and reported in units of it. A client keeps no residual of what it did not report: asked
    once it could not use it.
    """

    epsilon: float
    cohort_size: int = 10
    participations: int = 1
    top_share: float = 0.05
    selection_budget_share: float = 0.5
    server_learning_rate: float = 1.0
    hidden_size: int = 64
    latent_size: int = 16
    local_epochs: int = 10
    learning_rate: float = 1e-3
    pretraining_steps: int = 0

    renamed: ClassVar[Mapping[str, str]] = {
        "cohort": "cohort_size", "share": "top_share", "first": "selection_budget_share", "step": "server_learning_rate",
        "hidden": "hidden_size", "latent": "latent_size", "epochs": "local_epochs", "pretraining": "pretraining_steps",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The local privacy budget of everything one client holds.",
        "cohort_size": "How many clients a round asks.",
        "participations": "How many reports each client sends; they share epsilon.",
        "top_share": "The share of coordinates that count as the top (k/d).",
        "selection_budget_share": "The share of a report's epsilon that pays for the coordinate; the rest pays for its value.",
        "server_learning_rate": "The length of the server's step, in units of the largest change of local training.",
        "hidden_size": "The units of each hidden layer.",
        "latent_size": "The dimension of the Gaussian code.",
        "local_epochs": "How often a client goes through its records before it reports.",
        "learning_rate": "The learning rate of Adam at a client.",
        "pretraining_steps": "Steps on rows drawn evenly from the public domain, before the first round.",
    }
    small: ClassVar[Mapping[str, object]] = {"cohort_size": 15, "hidden_size": 6, "latent_size": 2, "local_epochs": 2}
    facts: ClassVar[Facts] = Facts(
        name="fedsel-wae",
        line="autoencoder, one value per client",
        title="the published autoencoder trained by one coordinate and one bit of its value per client (FedSel)",
        paper="Liu et al., DASFAA 2020, as the baseline of Jiang et al., PoPETs 2022",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="a model down, one index and one bit up, per client and participation",
    )
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        for name in ("cohort_size", "participations", "hidden_size", "latent_size", "local_epochs"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        for name in ("pretraining_steps", "server_learning_rate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise out_of_range(name, "at least 0", getattr(self, name))
        for name in ("top_share", "selection_budget_share"):
            if not 0 < getattr(self, name) < 1:
                raise out_of_range(name, "in (0, 1)", getattr(self, name))
        if not 0 < self.learning_rate < math.inf:
            raise out_of_range("learning_rate", "above 0", self.learning_rate)
        for part in (self.selection_budget_share, 1 - self.selection_budget_share):
            check_epsilon(self.epsilon * part / self.participations)

    def compose(self, population: Population) -> Composition:
        net = DenseAutoencoder(Blocks(population.table_schema.sizes), self.hidden_size, self.latent_size)
        size = count_parameters(net.shapes)
        mechanism = FedSel(
            size=size,
            epsilon=self.epsilon / self.participations,
            chosen=min(max(1, size - 1), max(1, round(self.top_share * size))),
            bound=self.local_epochs * self.learning_rate,
            first=self.selection_budget_share,
        )
        release = report_release(
            mechanism.event, epsilon=self.epsilon, participations=self.participations,
            report="one index and one bit of an update's value (FedSel)",
            derivation=(
                f"each report: {mechanism.event}, of which the index costs {mechanism.parts[0]:g} "
                f"({mechanism.chosen} of {mechanism.size} coordinates being the top) and the value the rest",
                "cohorts, latents and ties are public coins",
            ),
        )  # fmt: skip
        learner = AdamLearner(
            population=population, mechanism=mechanism, release=release, net=net, local_epochs=self.local_epochs,
            learning_rate=self.learning_rate, server_learning_rate=self.server_learning_rate,
            pretraining_steps=self.pretraining_steps,
            note=f"{size:,} parameters; values told in units of {mechanism.bound:g}",
        )  # fmt: skip
        schedule = Passes(
            clients=population.clients,
            cohort_size=min(self.cohort_size, population.clients),
            passes=self.participations,
        )
        return Composition(schedule, release, learner)
