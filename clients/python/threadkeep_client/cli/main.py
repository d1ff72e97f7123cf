"""The commands, their options and help texts, and what becomes of errors."""

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from threadkeep_client.cli import agents, chat, memory, runs, show, threads, where
from threadkeep_client.cli.session import (
    CHANGED,
    FAILED,
    INTERRUPTED,
    OK,
    UNREACHABLE,
    USAGE,
    Command,
    CommandFailed,
    Session,
)
from threadkeep_client.client import Client
from threadkeep_client.errors import ConnectionFailed, NotFound, ThreadkeepError, Unauthenticated, VersionMismatch

ABOUT = """\
Talk to the agents of a Threadkeep server and look at what they remember.

  threadkeep agents                                   which agents there are
  threadkeep chat assistant --resource ada            talk to one, as the user ada
  threadkeep chat assistant --thread t1 -m "Hello"    say one thing in a thread
  threadkeep threads list --resource ada              what ada talked about
  threadkeep threads show t1                          what was said in a thread
  threadkeep memory show --resource ada               what agents keep about ada
  threadkeep runs list assistant --thread t1          which durable runs a thread had
"""
NOTES = """\
The server is that of --url, else of THREADKEEP_URL, else the local stack whose .local/env is in this folder or one
above it. The key is that of --key, else of THREADKEEP_API_KEY; other users of this machine may see options, so prefer
the variable. The service key may act for every owner (--resource); a user's token always acts for that user.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers, 4 somebody else changed it meanwhile,
130 interrupted.
"""
WORKING_MEMORY = """\
What agents keep about an owner or a thread. Every change makes a new version.

  threadkeep memory show --resource ada                          what is kept about ada
  threadkeep memory show --thread t1 --agent session-notes       what the agent sees in thread t1
  threadkeep memory edit --resource ada                          change it in your editor
  threadkeep memory patch --resource ada '{"city": "Oslo"}'      change one field of a JSON memory
"""
_WIDE = argparse.RawDescriptionHelpFormatter


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; errors go to stderr, one line each."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (where.NoServer, ValueError) as error:
        return _fail(str(error), USAGE)
    except CommandFailed as error:
        return _fail(str(error), error.code)
    except ConnectionFailed as error:
        return _fail(str(error), UNREACHABLE)
    except Unauthenticated as error:
        return _fail(f"{error}; give another key with --key or THREADKEEP_API_KEY", FAILED)
    except VersionMismatch as error:
        return _fail(f"Somebody else changed it: version {error.version} is stored now; nothing was written", CHANGED)
    except NotFound as error:
        return _fail(f"{error} (404)", FAILED)
    except ThreadkeepError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def run() -> None:
    """The console script. What the terminal's encoding lacks is shown as `?`."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, TextIOWrapper):
            output.reconfigure(errors="replace")
    sys.exit(main())


def _run(options: argparse.Namespace) -> int:
    server = where.find(options.url, options.key, os.environ, Path.cwd())
    command: Command = options.command
    with Client(server.url, server.key, timeout=options.timeout) as client:
        command(Session(client, options))
    return OK


def _fail(message: str, code: int) -> int:
    print(f"threadkeep: {show.clean(' '.join(message.split()))}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="threadkeep", description=ABOUT, epilog=NOTES, formatter_class=_WIDE)
    _common(parser, first=True)
    groups = parser.add_subparsers(metavar="COMMAND", required=True)
    _add(groups, "agents", agents.list_agents)
    _chat(_add(groups, "chat", chat.chat))
    _threads(groups.add_parser("threads", help="List, show, delete and copy threads"))
    _memory(groups.add_parser("memory", help="Show and change working memory"))
    _runs(groups.add_parser("runs", help="Begin, list, show and cancel durable runs"))
    return parser


def _chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="the agent's id; `threadkeep agents` lists them")
    parser.add_argument("--thread", metavar="ID", help="go on in this thread (default: a new one)")
    parser.add_argument("--resource", metavar="ID", help="whose thread it is (default: your user name here)")
    parser.add_argument("--read-only", action="store_true", help="remember, but store nothing of this chat")
    parser.add_argument("-m", "--message", metavar="TEXT", help="say this and end, instead of reading lines")


def _threads(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    listed = _add(verbs, "list", threads.list_threads)
    listed.add_argument("--resource", metavar="ID", help="only threads of this owner")
    _paged(listed, 20)
    shown = _thread(_add(verbs, "show", threads.show_thread))
    _paged(shown, 40)
    deleted = _thread(_add(verbs, "delete", threads.delete_thread))
    deleted.add_argument("-y", "--yes", action="store_true", help="do not ask")
    cloned = _thread(_add(verbs, "clone", threads.clone_thread))
    cloned.add_argument("--new-id", metavar="ID", help="id of the copy (default: a new one)")
    cloned.add_argument("--title", metavar="TEXT", help="title of the copy (default: Clone of ...)")
    cloned.add_argument("--limit", metavar="N", type=int, help="copy only the newest N messages")


def _memory(parser: argparse.ArgumentParser) -> None:
    parser.description = WORKING_MEMORY
    parser.formatter_class = _WIDE
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    shown = _whose(_add(verbs, "show", memory.show_memory))
    shown.add_argument("--history", action="store_true", help="of an owner: the last changes instead of the text")
    _whose(_add(verbs, "edit", memory.edit_memory))
    replaced = _whose(_add(verbs, "set", memory.set_memory))
    replaced.add_argument("text", metavar="TEXT", nargs="?", help="the whole new text (default: standard input)")
    patched = _add(verbs, "patch", memory.patch_memory)
    patched.add_argument("patch", metavar="JSON", help="""such as '{"city": "Oslo", "old": null}'""")
    patched.add_argument("--resource", metavar="ID", required=True, help="whose memory it is")
    patched.add_argument("--agent", metavar="ID", help="apply the rules of this agent's memory")
    for changed in (replaced, patched):
        changed.add_argument("--if-version", metavar="N", type=int, help="only if this version is stored")


def _runs(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    begun, listed = _add(verbs, "start", runs.start_run), _add(verbs, "list", runs.list_runs)
    chosen = [_add(verbs, "show", runs.show_run), _add(verbs, "cancel", runs.cancel_run)]
    for verb in (begun, listed, *chosen):
        verb.add_argument("agent", metavar="AGENT", help="the agent's id")
    for verb in chosen:
        verb.add_argument("run", metavar="RUN", help="the run's id")
    begun.add_argument("-m", "--message", metavar="TEXT", required=True, help="what is asked for")
    begun.add_argument("--thread", metavar="ID", help="in this thread (default: nothing is remembered)")
    begun.add_argument("--wait", action="store_true", help="wait for its end and show what it came to")
    listed.add_argument("--thread", metavar="ID", required=True, help="the thread of the runs")
    listed.add_argument("--per-page", metavar="N", type=int, default=20, help="how many runs (default 20)")
    for verb in (begun, listed, *chosen):
        verb.add_argument("--resource", metavar="ID", help="whose run it is")


def _whose(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--resource",
        metavar="ID",
        help="whose memory it is; needed with --thread, too, to change an owner's with the service key",
    )
    parser.add_argument("--thread", metavar="ID", help="what an agent keeps for this thread; needs --agent")
    parser.add_argument("--agent", metavar="ID", help="the agent that keeps it, whose rules apply")
    return parser


def _thread(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("thread", metavar="THREAD", help="the thread's id")
    parser.add_argument("--resource", metavar="ID", help="refuse it if the thread has another owner")
    return parser


def _paged(parser: argparse.ArgumentParser, size: int) -> None:
    parser.add_argument("--page", metavar="N", type=int, default=0, help="which page, from 0")
    parser.add_argument("--per-page", metavar="N", type=int, default=size, help=f"rows of a page (default {size})")


def _add(groups: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, command: Command) -> argparse.ArgumentParser:  # pyright: ignore[reportPrivateUsage]  # fmt: skip  # noqa: E501
    """A command, with what its function says about itself as help."""
    about = (command.__doc__ or "").strip()
    parser = groups.add_parser(name, help=about, description=about, formatter_class=_WIDE)
    parser.set_defaults(command=command)
    _common(parser, first=False)
    return parser


def _common(parser: argparse.ArgumentParser, *, first: bool) -> None:
    """Options that may stand before or after the command; there they must not undo what was given before it."""

    def default(value: object) -> object:
        return value if first else argparse.SUPPRESS

    group = parser.add_argument_group("server and output")
    group.add_argument("--url", default=default(None), help="the server's address, without /api")
    group.add_argument("--key", default=default(None), help="the service key or a user's token")
    group.add_argument("--timeout", metavar="S", type=float, default=default(60.0), help="seconds to wait (default 60)")
    group.add_argument("--json", action="store_true", default=default(False), help="print JSON, for programs")
