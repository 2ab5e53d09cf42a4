"""From options to what is proposed to the sites: a method with all its parameters over a declared schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from populace.engines.agreement import Agreement
from populace.errors import SchemaError, SpecError
from populace.federation.sum_keys import roster_of
from populace.runs.spec import ANY_COLUMN, make_method, make_spec
from populace.tables.schema import load_schema
from populace.tables.universal import released


def propose(
    *,
    schema: str,
    epsilon: float,
    method: str | None = None,
    delta: float | None = None,
    target: str | None = None,
    trust: str | None = None,
    person: bool = False,
    settings: Mapping[str, str],
    sum_keys: Sequence[str] = (),
) -> Agreement:
    """The proposal; refuses domains that were read from data or found in them: no site's rows may shape what all agree to.

    With `person` it protects persons with all their rows at a site; each site says which of its columns names them.
    `sum_keys` are the sites of secure sums, NAME=KEY each.
    """
    declared = load_schema(schema).with_target(target)
    if declared.read_from_data:
        raise SchemaError(
            f"the domain of {', '.join(declared.read_from_data)} was read from data; a federation needs a declared schema: "
            "check it and say domain = 'declared' with a source, or take the domains from a public table with "
            "`populace schema --public FILE`"
        )
    if listed := [column.name for column in released(declared)]:
        raise SchemaError(
            f"the categories of {', '.join(listed)} were found in the data of another run, under noise that this federation "
            "does not pay for; declare them: say domain = 'declared' with a source"
        )
    spec = make_spec(
        data="a federation", epsilon=epsilon, method=method, delta=delta, trust=trust, settings=dict(settings),
        person=ANY_COLUMN if person else None,
    )  # fmt: skip
    protocol = make_method(spec)
    if getattr(protocol, "lists_share", 0):
        raise SpecError(
            "categories are found under privacy (lists_share) by `populace synthesize` alone, and a federation declares them: "
            "leave lists_share at 0, and list the categories in the schema (`populace schema` writes a draft)"
        )
    if "table" not in protocol.facts.kinds:
        raise SpecError(f"method {protocol.facts.name!r} takes no tables; `populace methods` lists what does")
    return Agreement(protocol=protocol, schema=declared, roster=roster_of(protocol, sum_keys))
