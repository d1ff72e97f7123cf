"""`python -m tests.scripted [--port N]`: serve until interrupted. Port 0 takes a free one."""

import argparse
import signal

from tests.scripted.server import ScriptedModel


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.scripted", description="A scripted OpenAI-compatible model")
    parser.add_argument("--port", type=int, default=4299, help="default 4299; 0 takes a free one")
    port = parser.parse_args().port
    ends = {signal.SIGINT, signal.SIGTERM}
    # Handlers run in the main thread, which a signal that another thread got would not wake: all threads block them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        scripted = ScriptedModel(port)
    except OSError as error:
        parser.exit(1, f"port {port} cannot be used: {error.strerror}\n")
    with scripted as model:
        print(model.url, flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
