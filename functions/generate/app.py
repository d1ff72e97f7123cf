"""POST /api/agents/{agentId}/generate, its approvals, messages sent to threads, and tools that are called directly."""

from threadkeep.bootstrap import app
from threadkeep.http import approvals, gateway, generate, live, live_decisions, tools

handler = gateway.handler(
    (*generate.ROUTES, *approvals.ROUTES, *live.ROUTES, *live_decisions.ROUTES, *tools.ROUTES), app
)
