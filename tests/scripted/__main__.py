"""`python -m tests.scripted [--port N]`: serve until interrupted. Port 0 takes a free one."""

import argparse
import signal
import threading

from tests.scripted.server import ScriptedModel


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.scripted", description="A scripted OpenAI-compatible model")
    parser.add_argument("--port", type=int, default=4299, help="default 4299; 0 takes a free one")
    port = parser.parse_args().port
    try:
        scripted = ScriptedModel(port)
    except OSError as error:
        parser.exit(1, f"port {port} cannot be used: {error.strerror}\n")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with scripted as model:
        print(model.url, flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
