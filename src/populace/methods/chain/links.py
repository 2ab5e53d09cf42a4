"""The two methods of a chain: as they are given, and with the noise that makes them fit into one budget."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from populace.errors import SpecError
from populace.methods.base import Population, Protocol
from populace.methods.registry import make_protocol, parameters, protocol_class, registered_name, settings_from_file
from populace.privacy.accounting import epsilon_of, noise_multiplier_for, sampled_gaussian
from populace.privacy.bisection import bisect
from populace.privacy.events import Composed, Event
from populace.types import JsonObject

if TYPE_CHECKING:
    from populace.methods.chain.protocol import Chain

TOLERANCE = 1e-3  # of the second method's noise multiplier
SEARCH = 1e-3  # discretisation while it is looked for: never optimistic
SHARED = ("epsilon", "delta", "noise_multiplier")  # settings of both methods that a chain makes fit into its budget
OF_SUMS = ("trust", "colluders", "dropouts")  # those that say who adds the noise, and are the chain's own too
#: A method that begins from samples knows nearly all it will: few small steps, and a larger network than it could learn alone.
BEGUN: dict[str, dict[str, object]] = {
    "l-dpd-vae": {"participations": 10, "server_learning_rate": 0.001, "codes_per_example": 1}
}
LARGER: dict[str, dict[str, object]] = {
    "l-dpd-vae": {"net": "basis", "basis_size": 16, "hidden_size": 256, "latent_size": 64, "beta": 0.0003}
}


@dataclasses.dataclass(frozen=True)
class Links:
    """Both methods with the noise that makes them fit into one budget, and their events composed."""

    first: Protocol
    then: Protocol
    delta: float
    whole: Event


def method_from_document(document: JsonObject, where: str) -> Protocol:
    """A method as a file has it."""
    if set(document) != {"method", "settings"} or not isinstance(document["settings"], Mapping):
        raise SpecError(f"expected {where} of a chain with its method and settings, got {document!r}")
    name = document["method"]
    return make_protocol(name, settings_from_file(name, document["settings"]))


def check_value(chain: Chain, where: str, method: Protocol) -> None:
    """Refuse a method whose budget or trust is not the chain's: nobody is to think that it was followed."""
    for name in OF_SUMS:
        usual = type(method).facts.trust[0] if name == "trust" else 0
        if getattr(method, name, usual) not in (usual, getattr(chain, name)):
            raise SpecError(
                f"a chain sets {name} of both methods itself: leave {where}.{name} out, and set the chain's own"
            )
    for name, allowed in zip(SHARED, ((chain.epsilon,), (0.0, chain.delta), (0.0,)), strict=True):
        value = getattr(method, name, allowed[0])
        if value not in allowed:
            raise SpecError(
                f"a chain sets {name} of both methods itself: expected {where}.{name} {allowed[-1]:g}, got {value:g}"
            )


def read_settings_text(text: str) -> dict[str, str]:
    """Settings written as `name=value` with commas between."""
    settings = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise SpecError(f"expected settings as name=value with commas between, got {part!r}")
        settings[name.strip()] = value.strip()
    return settings


def _named(method: Protocol | str | JsonObject, *, begun: bool = False) -> tuple[str, dict[str, object]]:
    """A method's name and settings, without those that the chain sets."""
    if isinstance(method, Protocol):
        fields = [field.name for field in dataclasses.fields(method)]  # type: ignore[arg-type]
        kept = [name for name in fields if name not in (*SHARED, *OF_SUMS)]
        return registered_name(method), {name: getattr(method, name) for name in kept}
    name, _, text = str(method).partition(":")
    given: dict[str, object] = {**read_settings_text(text)}
    for setting in SHARED:
        if setting in given:
            raise SpecError(f"a chain sets {setting} of both methods itself; leave it out of their settings")
    return name, _suited(name, given) if begun else given


def _suited(method: str, given: Mapping[str, object]) -> dict[str, object]:
    """What is given, and what suits a method that begins from samples where nothing is."""
    larger = LARGER.get(method, {})
    if larger and given.get("net", larger["net"]) != larger["net"]:
        larger = {"hidden_size": 0}  # the other network's own
    return {**BEGUN.get(method, {}), **larger, **given}


def _trusted(chain: Chain, method: str, given: Mapping[str, object]) -> dict[str, object]:
    """What the chain sets of who adds the noise, of a method that offers the chain's trust; of others nothing."""
    if chain.trust == "silo" or chain.trust not in protocol_class(method).facts.trust:
        return {}
    if twice := [name for name in OF_SUMS if name in given]:
        raise SpecError(f"a chain sets {twice[0]} of both methods itself; leave it out of their settings")
    return {name: getattr(chain, name) for name in OF_SUMS}


@functools.lru_cache(maxsize=16)
def links_of(chain: Chain, population: Population) -> Links:
    """Noise for both methods such that together they stay within the budget."""
    (first_name, first_settings), (then_name, then_settings) = _named(chain.first), _named(chain.then, begun=True)
    first_settings |= _trusted(chain, first_name, first_settings)
    then_settings |= _trusted(chain, then_name, then_settings)
    trial = make_protocol(then_name, {**then_settings, "epsilon": chain.epsilon, "delta": chain.delta})
    claimed = trial.guarantee(population)
    if math.isinf(claimed.epsilon):
        raise SpecError(f"method {then_name!r} guarantees nothing with these settings; a chain cannot mend that")
    delta = claimed.accounted_delta
    whole = noise_multiplier_for(epsilon=chain.epsilon, delta=delta)
    opening = epsilon_of(sampled_gaussian(noise_multiplier=whole / chain.budget_share**0.5), delta=delta)
    first = make_protocol(first_name, {**first_settings, "epsilon": opening, "delta": delta})
    claims = [method.guarantee(population) for method in (first, trial)]
    for method, claim in zip((first, trial), claims, strict=True):
        if (claim.unit, claim.neighbours) != ("record", "zero-out") or claim.trust not in ("silo", chain.trust):
            raise SpecError(
                f"method {method.facts.name!r} protects one {claim.unit} with trust {claim.trust}; a chain takes methods that "
                f"protect one record with trust {' or '.join(dict.fromkeys(('silo', chain.trust)))}"
            )
    if chain.trust not in {claim.trust for claim in claims}:
        raise SpecError(f"neither {first_name!r} nor {then_name!r} offers trust {chain.trust}; use trust silo")
    if not trial.begins_warm:
        raise SpecError(
            f"method {then_name!r} does not begin from another's generator, and cannot be the second of a chain"
        )
    if "noise_multiplier" not in parameters(then_name):
        raise SpecError(f"method {then_name!r} has no noise that can be set, and cannot be the second of a chain")

    def links(noise: float) -> Links:
        budget = {"epsilon": chain.epsilon, "delta": delta, "noise_multiplier": noise}
        then = make_protocol(then_name, {**then_settings, **budget})
        return Links(first, then, delta, Composed((first.spends(population), then.spends(population))))

    def fits(noise: float) -> bool:
        return epsilon_of(links(noise).whole, delta=delta, interval=SEARCH) <= chain.epsilon

    low = high = trial.calibrated_noise(population)
    while not fits(high):
        low, high = high, 1.5 * high
    return links(bisect(fits, low, high, tolerance=TOLERANCE)[1])
