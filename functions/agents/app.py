"""GET /api/agents, agents, tools, and the health check."""

from threadkeep.bootstrap import app
from threadkeep.http import agents, gateway, health

handler = gateway.handler((*health.ROUTES, *agents.ROUTES), app)
