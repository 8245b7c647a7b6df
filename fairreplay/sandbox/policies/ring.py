"""A ring of tenants, visited one after the other in order of name, for ``drr`` and ``round-robin``.

Visits are numbered: visit p is to tenant ``p mod n``. So the visit at which a tenant will be served is known as soon
as its head is, and does not change while others are served: that number is the head's rank.
"""

from __future__ import annotations


def next_visit(tenant: int, tenants: int, after: int) -> int:
    """The first visit to ``tenant`` after visit ``after``."""
    return after + 1 + (tenant - after - 1) % tenants
