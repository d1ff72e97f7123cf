"""What agents keep about a thread or a resource: reading it, replacing it, merging into it."""

from threadkeep.bootstrap import app
from threadkeep.http import gateway, working_memory

handler = gateway.handler(working_memory.ROUTES, app)
