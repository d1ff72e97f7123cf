"""An assistant that remembers its conversations, names them, and can tell the time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from threadkeep import Agent, Memory, tool


@tool
def current_time(time_zone: str = "UTC") -> str:
    """Tell the current date and time in an IANA time zone such as Europe/Paris."""
    try:
        zone = ZoneInfo(time_zone) if time_zone != "UTC" else UTC
    except (ZoneInfoNotFoundError, ValueError):
        return f"There is no time zone {time_zone}. Use a name such as Europe/Paris."
    return f"{datetime.now(zone):%A, %d %B %Y, %H:%M (%Z)}"


assistant = Agent(
    id="assistant",
    name="Assistant",
    description="A helpful assistant that remembers the conversation",
    instructions=(
        "Answer in one or two short sentences. When the user tells you something, repeat it back in your own words. "
        "Use what the user told you earlier when it helps."
    ),
    memory=Memory(last_messages=20, generate_title=True),
    tools=[current_time],
)
