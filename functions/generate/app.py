"""POST /api/agents/{agentId}/generate, its approvals, and tools that are called directly."""

from threadkeep.bootstrap import app
from threadkeep.http import approvals, gateway, generate, tools

handler = gateway.handler((*generate.ROUTES, *approvals.ROUTES, *tools.ROUTES), app)
