"""The whole route table. Functions import only their own module's `ROUTES`; this is for what needs all of them."""

from threadkeep.http import (
    agents,
    approval_streams,
    approvals,
    generate,
    health,
    live,
    live_decisions,
    memory,
    runs,
    stream,
    studio,
    tools,
    working_memory,
)
from threadkeep.http.route import Table

ROUTES: Table = (
    *health.ROUTES,
    *agents.ROUTES,
    *studio.ROUTES,
    *generate.ROUTES,
    *approvals.ROUTES,
    *stream.ROUTES,
    *approval_streams.ROUTES,
    *live.ROUTES,
    *live_decisions.ROUTES,
    *live.STREAMS,
    *runs.ROUTES,
    *tools.ROUTES,
    *memory.ROUTES,
    *working_memory.ROUTES,
)
