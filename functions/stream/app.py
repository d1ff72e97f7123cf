"""POST /api/agents/{agentId}/stream and its kin, and subscriptions: an ASGI app behind the Lambda Web Adapter.

`run.sh` starts it.
"""

from threadkeep.bootstrap import app as services
from threadkeep.http import approval_streams, live, stream
from threadkeep.http.asgi import StreamApp

app = StreamApp((*stream.ROUTES, *approval_streams.ROUTES, *live.STREAMS), services)
