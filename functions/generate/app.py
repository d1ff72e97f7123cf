"""POST /api/agents/{agentId}/generate, approvals, messages sent to threads, durable runs, and tools called directly."""

from threadkeep.bootstrap import app
from threadkeep.http import approvals, gateway, generate, live, live_decisions, runs, tools

handler = gateway.handler(
    (
        *generate.ROUTES,
        *approvals.ROUTES,
        *live.ROUTES,
        *live_decisions.ROUTES,
        *runs.ROUTES,
        *tools.ROUTES,
    ),
    app,
)
