"""POST /api/agents/{agentId}/generate."""

from threadkeep.bootstrap import app
from threadkeep.http import gateway, generate

handler = gateway.handler(generate.ROUTES, app)
