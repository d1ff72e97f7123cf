"""`python -m local up|down|status|studio`: the application on this machine."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from local.models.choose import Choice, NoModel
from local.models.process import SCRIPT_RECORD, find, listed_models, stop_all
from local.models.remember import model_for_up, remember
from local.node import NodeError
from local.stack import PARAMETERS, PASSED_ON, ROOT, Stack, StackError, answers, free_port
from local.studio import BASE_PATH, StudioError, fetch

HOME = ROOT / ".local/dev"
ENV_FILE = ROOT / ".local/env"
PORT = 4111
_NO_MODEL = "none, so turns fail; `make run` finds one, or OPENAI_API_KEY=... make up"

Say = Callable[[str], None]


def say(line: str) -> None:
    print(f"  {line}", flush=True)


def development_stack(agents: Path | None = None, choice: Choice | None = None, say: Say = say) -> Stack:
    """The stack of `make up` with the model `choice`, else the environment's, else the template's.

    Its other parameters are the environment's, else the template's.
    """
    parameters = {PARAMETERS[name]: os.environ[name] for name in PARAMETERS if os.environ.get(name)}
    environment = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    if choice:
        base_url = choice.environment.get("OPENAI_BASE_URL", "")
        parameters |= {"DefaultModel": choice.model, "OpenAiBaseUrl": base_url}
        environment = {name: value for name, value in choice.environment.items() if name not in PARAMETERS}
    return Stack(
        HOME, agents=agents, parameters=parameters, environment=environment, persist=True, port=4566, parent=False,
        say=say,
    )  # fmt: skip


def up(stack: Stack, port: int = PORT, choice: Choice | None = None) -> None:
    """Start, deploy and open the front door: whatever of it is not yet so. Writes `.local/env`. Raises `StackError`."""
    began = time.monotonic()
    stack.check_port(port)
    if not (stack.running() and stack.as_wanted()):
        stack.say("Starting the local AWS")
        stack.stop()
        stack.start()
    deployed = stack.deploy()
    stack.serve(port)
    if deployed or not ENV_FILE.exists() or f"BASE_URL={stack.base_url}\n" not in ENV_FILE.read_text():
        ENV_FILE.touch(0o600)
        ENV_FILE.write_text(f"BASE_URL={stack.base_url}\nAPI_KEY={shlex.quote(stack.service_key())}\n")
    if choice:
        remember(choice)
    stack.say(f"Ready at {stack.base_url} after {time.monotonic() - began:.1f} s; the key is in .local/env")


def status(stack: Stack) -> int:
    """Print what runs. Returns the exit code: 0 if all of it does."""
    deployed = stack.record.get("deployed")
    if not stack.running():
        print("down; make up starts it")
        return 1
    if not deployed or not answers(f"{stack.base_url}/health"):
        print(f"The emulated AWS runs at {stack.endpoint}, but the application does not answer; make up mends it")
        return 1
    print(f"up at {stack.base_url}, emulated AWS at {stack.endpoint}, logs in {HOME.relative_to(ROOT)}")
    parameters = deployed["parameters"]
    model, base_url = parameters.get("DefaultModel", "the template's, on Bedrock"), parameters.get("OpenAiBaseUrl")
    if (base_url and not listed_models(base_url, os.environ.get("OPENAI_API_KEY", ""))) or (
        model.startswith("scripted/") and not find(SCRIPT_RECORD)
    ):
        print(f"model: {model}, but it does not answer at {base_url or 'its port'}; make up starts a local one again")
        return 1
    print(f"model: {model}{f' at {base_url}' if base_url else ''}")
    return 0


def studio_for(url: str, token: str, port: int) -> None:
    """Mastra Studio for a deployment elsewhere, until it is interrupted. Raises `StackError` if the port is taken.

    What the page asks is passed on to `url` with `token`, unless that is empty or the page sends its own.
    """
    if free_port(port) != port:
        raise StackError(f"Port {port} is taken; choose another one with PORT=...")
    import uvicorn

    from local.front_door import create_app
    from local.studio import with_studio

    proxy = create_app(lambda: url, f"{url} does not answer", trust_env=True)
    say(f"Studio for {url} at http://127.0.0.1:{port}{BASE_PATH}; stop it with Ctrl-C")
    if not token:
        say("There is no API_KEY in the environment: give Studio an Authorization header in its settings")
    app = with_studio(proxy, lambda: token)
    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False, log_level="warning")


def run(command: str, agents: Path | None, port: int, url: str) -> int:
    """One command of the command line. Returns the exit code.

    Raises `NoModel`, `StackError`, and for Studio `NodeError` or `StudioError`.
    """
    if command == "status":
        return status(development_stack())
    if command == "studio":
        fetch(say)
        if url:
            studio_for(url, os.environ.get("API_KEY", ""), port)
            return 0
    stack = development_stack(agents)
    with stack.alone():
        if command == "down":
            try:
                stack.stop()
            finally:
                stop_all()
            return 0
        stack.check_port(port)
        choice = model_for_up(os.environ, say)
        up(development_stack(agents, choice), port, choice)
    say(f"Model: {choice.about if choice else os.environ.get('DEFAULT_MODEL') or _NO_MODEL}")
    if command == "studio":
        say(f"Studio: {stack.base_url}{BASE_PATH}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status", "studio"])
    parser.add_argument("--agents", type=Path, help="folder of the agents package to deploy")
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the front door (default {PORT})")
    parser.add_argument("--url", default="", help="base URL of a deployment elsewhere, for studio")
    options = parser.parse_args()
    try:
        return run(options.command, options.agents, options.port, options.url)
    except (NodeError, NoModel, StackError, StudioError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED.format(options.command), file=sys.stderr)
        return 130


INTERRUPTED = "\nInterrupted. `make {}` goes on where it was; `make down` stops what runs."

if __name__ == "__main__":
    sys.exit(main())
