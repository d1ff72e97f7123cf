"""A personal assistant that knows its user in every thread: working memory of the resource, as Markdown."""

from threadkeep import Agent, Memory

TEMPLATE = """
# User Profile
- Name:
- Location:
- Timezone:
- Interests:
- Preferences: [e.g., short answers]
- Goals:
- Important Dates:
  - [Event]: [Date]
"""

personal_assistant = Agent(
    id="personal-assistant",
    name="Personal Assistant",
    description="Keeps a profile of its user, and knows it in every conversation",
    instructions=(
        "You are a helpful personal assistant. Answer in one or two short sentences. "
        "When the user tells you something lasting about themselves, update the profile; when something is no longer "
        "true, clear it there. Never ask for what the profile holds."
    ),
    memory=Memory(last_messages=20, working_memory={"enabled": True, "template": TEMPLATE}),
)
