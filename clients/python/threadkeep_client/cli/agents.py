"""`threadkeep agents`."""

from threadkeep_client.cli import show
from threadkeep_client.cli.session import Session
from threadkeep_client.models import AgentView


def list_agents(session: Session) -> None:
    """List the agents that the server has"""
    agents = session.client.list_agents(partial=True)
    if session.json:
        return show.as_json(agents)
    rows = [
        [name, agent.name, _model(agent), "yes" if agent.supports_memory else "no"] for name, agent in agents.items()
    ]
    show.table(["ID", "NAME", "MODEL", "REMEMBERS"], rows)


def _model(agent: AgentView) -> str:
    """`provider/model`, as far as the server tells it."""
    return "/".join(filter(None, (agent.provider, agent.model_id))) or "?"
