"""`python -m local up|down|status`: the application on this machine."""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from local.models.process import stop_all
from local.stack import PARAMETERS, PASSED_ON, ROOT, Stack, StackError

HOME = ROOT / ".local/dev"
ENV_FILE = ROOT / ".local/env"
PORT = 4111


def say(line: str) -> None:
    print(f"  {line}", flush=True)


def development_stack(agents: Path | None = None, **parameters: str) -> Stack:
    """The stack of `make up`. Its parameters are `parameters`, else the environment's, else the template's."""
    found = {PARAMETERS[name]: os.environ[name] for name in PARAMETERS if os.environ.get(name)}
    return Stack(
        HOME, agents=agents, parameters=found | parameters, persist=True, port=4566, parent=False, say=say,
        environment={name: os.environ[name] for name in PASSED_ON if os.environ.get(name)},
    )  # fmt: skip


def up(stack: Stack, port: int = PORT) -> None:
    """Start, deploy and open the front door: whatever of it is not yet so. Writes `.local/env`. Raises `StackError`."""
    began = time.monotonic()
    if not stack.running():
        stack.say("Starting the local AWS")
        stack.stop()
        stack.start()
    deployed = stack.deploy()
    stack.serve(port)
    if deployed or not ENV_FILE.exists() or f"BASE_URL={stack.base_url}\n" not in ENV_FILE.read_text():
        ENV_FILE.write_text(f"BASE_URL={stack.base_url}\nAPI_KEY={shlex.quote(stack.service_key())}\n")
        ENV_FILE.chmod(0o600)
    stack.say(f"Ready at {stack.base_url} after {time.monotonic() - began:.1f} s; the key is in .local/env")


def status(stack: Stack) -> int:
    """Print what runs. Returns the exit code: 0 if the stack is up."""
    if not stack.running():
        print("down")
        return 1
    print(f"up at {stack.base_url}, emulated AWS at {stack.endpoint}, logs in {HOME.relative_to(ROOT)}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--agents", type=Path, help="folder of the agents package to deploy")
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the front door (default {PORT})")
    options = parser.parse_args()
    try:
        stack = development_stack(options.agents)
        if options.command == "status":
            return status(stack)
        if options.command == "down":
            stack.stop()
            stop_all()
        else:
            up(stack, options.port)
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
