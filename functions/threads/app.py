"""Threads and their messages."""

from threadkeep.bootstrap import app
from threadkeep.http import gateway, threads

handler = gateway.handler(threads.ROUTES, app)
