"""POST /api/agents/{agentId}/stream and its kin: an ASGI app, run by `run.sh` behind the Lambda Web Adapter."""

from threadkeep.bootstrap import app as services
from threadkeep.http import approval_streams, stream
from threadkeep.http.asgi import StreamApp

app = StreamApp((*stream.ROUTES, *approval_streams.ROUTES), services)
