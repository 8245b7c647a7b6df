"""Which waiting request goes next: one file a policy, all listed in ``POLICIES``.

Waiting requests stand in FIFO queues per (tenant, type, priority). A policy ranks the heads of these queues with an
integer, lowest first; equal ranks go by (arrival, order in the source). Ranking, admission and the choice of victims
are separate: under every policy the first head that does not fit ends admission.
"""

from __future__ import annotations

from typing import Final

from fairreplay.sandbox.policies.base import Policy
from fairreplay.sandbox.policies.drr import Drr
from fairreplay.sandbox.policies.edf import Edf
from fairreplay.sandbox.policies.fcfs import Fcfs
from fairreplay.sandbox.policies.priority import Priority
from fairreplay.sandbox.policies.qoserve import Qoserve
from fairreplay.sandbox.policies.quantile import Quantile
from fairreplay.sandbox.policies.round_robin import RoundRobin
from fairreplay.sandbox.policies.rpm_limit import RpmLimit
from fairreplay.sandbox.policies.sjf import Sjf
from fairreplay.sandbox.policies.type_priority import TypePriority
from fairreplay.sandbox.policies.vtc import Vtc
from fairreplay.sandbox.policies.wfq import Wfq
from fairreplay.sandbox.policies.wfq_edf import WfqEdf

POLICIES: Final[dict[str, type[Policy]]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "vtc": Vtc,
    "drr": Drr,
    "wfq": Wfq,
    "edf": Edf,
    "wfq+edf": WfqEdf,
    "quantile": Quantile,
    "qoserve": Qoserve,
    "type-priority": TypePriority,
    "sjf": Sjf,
    "round-robin": RoundRobin,
    "rpm-limit": RpmLimit,
}

ESTIMATE: Final = ("sjf", "wfq", "wfq+edf", "qoserve")
"""Policies that rank by what a request is expected to cost, or charge it beforehand; the others go by what they see."""

KNOW_DEADLINES: Final = frozenset({"edf", "wfq+edf", "quantile", "qoserve"})
"""Policies that need the tenants' TTFT targets (``PolicySpec.slo_ps``)."""
