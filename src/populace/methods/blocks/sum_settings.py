"""What methods that offer several trusts for their sums share: checks and sentences of `secure-sum`."""

from __future__ import annotations

from populace.errors import SpecError
from populace.privacy.guarantee import Trust
from populace.privacy.noise_shares import SumSites

SECURE_SUM = (
    "single messages stay hidden under masks (X25519, HKDF-SHA256, ChaCha20, Ed25519), as far as these are not broken and no "
    "more silos than stated collude with the server",
    "every silo draws its share of the noise; one that draws none counts among those who collude",
)


def check_sum_settings(trust: Trust, *, colluders: int, dropouts: int) -> None:
    """Refuse colluders and dropouts that are negative, or under another trust."""
    if trust != "secure-sum" and (colluders or dropouts):
        raise SpecError(
            f"colluders and dropouts are for trust secure-sum, and the trust is {trust}; leave them out, or ask for it"
        )
    if colluders < 0 or dropouts < 0:
        raise SpecError(f"expected colluders and dropouts of at least 0, got {colluders} and {dropouts}")


def sum_sites(trust: Trust, clients: int, *, colluders: int, dropouts: int) -> SumSites | None:
    """The sites of a secure sum; None under another trust."""
    return SumSites(clients=clients, colluders=colluders, dropouts=dropouts) if trust == "secure-sum" else None


def sum_assumptions(trust: Trust, *, total: str = "sum") -> tuple[str, ...]:
    """What has to be assumed of whoever adds the noise; `total` is the method's word for what it adds it to."""
    central = f"the server adds the noise to the {total} and shows nobody a message without it"
    return SECURE_SUM if trust == "secure-sum" else (central,) if trust == "central" else ()
