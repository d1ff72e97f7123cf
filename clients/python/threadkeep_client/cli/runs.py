"""`threadkeep runs ...`."""

from threadkeep_client.cli import show
from threadkeep_client.cli.session import CommandFailed, Session
from threadkeep_client.cli.threads import time_of
from threadkeep_client.models import RunView


def start_run(session: Session) -> None:
    """Begin a run that goes on without you; prints its id, or with --wait what it came to"""
    options = session.options
    started = session.client.start_run(options.agent, options.message, thread=options.thread, resource=options.resource)
    if options.wait:
        return _told(session, session.client.wait_for_run(options.agent, started.run_id, resource_id=options.resource))
    show.as_json(started) if session.json else print(started.run_id)


def list_runs(session: Session) -> None:
    """List the runs of an agent on a thread, newest first"""
    options = session.options
    found = session.client.list_runs(
        options.agent, options.thread, resource_id=options.resource, per_page=options.per_page
    )
    if session.json:
        return show.as_json(found)
    show.table(["ID", "STATE", "BEGAN", "ERROR"], [
        [run.run_id, run.state, time_of(run.created_at), run.error.message if run.error else ""] for run in found.runs
    ])  # fmt: skip


def show_run(session: Session) -> None:
    """Show a run: its steps, its delegations, what it came to"""
    options = session.options
    _told(session, session.client.get_run(options.agent, options.run, resource_id=options.resource))


def cancel_run(session: Session) -> None:
    """End a run; no thread gets anything of it from then on"""
    options = session.options
    run = session.client.cancel_run(options.agent, options.run, resource_id=options.resource)
    show.as_json(run) if session.json else print(f"{run.run_id} is {run.state}")


def _told(session: Session, run: RunView) -> None:
    if session.json:
        show.as_json(run)
    else:
        print(f"Run       {run.run_id}\nState     {run.state}\nSteps     {len(run.steps)}")
        for delegation in run.delegations:
            show.text(f"  {delegation.key}  {delegation.state}  {delegation.text}")
        if run.result is not None:
            show.text(f"\n{run.result.text}")
    if run.state == "failed" and run.error is not None:
        raise CommandFailed(f"{run.error.name}: {run.error.message}")
