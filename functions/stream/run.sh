#!/bin/sh
# The Lambda Web Adapter starts this instead of a handler and sends requests to the port.
export PYTHONPATH="$LAMBDA_TASK_ROOT:/opt/python:$PYTHONPATH"
exec python -m uvicorn app:app --host 127.0.0.1 --port "$AWS_LWA_PORT" --lifespan off --no-access-log --log-level warning
