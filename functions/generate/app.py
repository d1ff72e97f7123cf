"""POST /api/agents/{agentId}/generate, and tools that are called directly."""

from threadkeep.bootstrap import app
from threadkeep.http import gateway, generate, tools

handler = gateway.handler((*generate.ROUTES, *tools.ROUTES), app)
