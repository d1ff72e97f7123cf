"""Threads, their messages, and what agents remember."""

from threadkeep.bootstrap import app
from threadkeep.http import gateway, memory

handler = gateway.handler(memory.ROUTES, app)
