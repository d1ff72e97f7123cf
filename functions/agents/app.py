"""GET /api/agents, agents, tools, what Studio asks for at start, and the health check."""

from threadkeep.bootstrap import app
from threadkeep.http import agents, gateway, health, studio

handler = gateway.handler((*health.ROUTES, *agents.ROUTES, *studio.ROUTES), app)
