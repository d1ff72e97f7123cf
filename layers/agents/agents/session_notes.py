"""A note taker for one session: working memory of the thread, which no other thread sees."""

from threadkeep import Agent, Memory

TEMPLATE = """
# Notes
- Topic:
- Goal:
- Decisions:
- Open Questions:
- Next Steps:
"""

session_notes = Agent(
    id="session-notes",
    name="Session Notes",
    description="Takes the notes of one conversation",
    instructions=(
        "You take the notes of this session. Keep them in a few words each: add what was decided, take out a question "
        "once it is answered. Answer in one or two short sentences."
    ),
    memory=Memory(last_messages=20, working_memory={"enabled": True, "scope": "thread", "template": TEMPLATE}),
)
