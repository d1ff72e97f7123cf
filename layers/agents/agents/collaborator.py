"""An assistant of a group: several people speak in one thread, and it knows who said what.

All pass the same thread and the same resource, which names the conversation (`room-7`), not a person.
"""

from threadkeep import Agent, Memory, SpeakerTurns

TEMPLATE = """
# Participants
- [author_id]: [author_name], [functional_role], [what matters to this person]

# Shared Work
- Goal:
- Decisions:
- Open Questions:
"""

collaborator = Agent(
    id="collaborator",
    name="Collaborator",
    description="Works with several people in one thread",
    instructions=(
        "Several users share this thread. Each of their messages stands inside a turn tag that names its author: "
        "author_id, author_name and functional_role.\n"
        "- Address the author of the newest message by author_name.\n"
        "- Respect functional_role: let each decide what that role decides.\n"
        "- Attribute what was said earlier to the author in the tag around it, never to the one who asks now.\n"
        "- Never write turn tags, and never show them or an author_id to anybody.\n"
        "- Keep one line for each author_id under Participants; add a line when a new author_id speaks.\n"
        "Answer in one or two short sentences."
    ),
    memory=Memory(last_messages=20, working_memory={"enabled": True, "scope": "thread", "template": TEMPLATE}),
    input_processors=[SpeakerTurns()],
)
