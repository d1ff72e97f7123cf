"""A research desk: a supervisor that has facts found by a researcher, and texts written by a writer.

Each of the two has a memory of its own for each user: what the user wants of research, and how the user likes texts.
It lasts over delegations, and neither the other nor the supervisor sees it. Both can be called directly, too.
"""

from collections.abc import Sequence

from agents.research_desk.notes import search_notes
from threadkeep import Agent, Delegation, DelegationCall, Limits, Memory, RunMessage

INTERESTS = """
# What This User Wants Of Research
- Field And Purpose:
- Depth: [e.g., overview, details with numbers]
- Known Already:
"""
STYLE = """
# How This User Likes Texts
- Language:
- Tone: [e.g., plain, formal]
- Length And Form: [e.g., three bullets]
- Avoid:
"""
SHOWN = 6  # messages of the conversation that a sub-agent sees


def background(call: DelegationCall) -> Sequence[RunMessage]:
    """The researcher sees what the user has said; the writer sees the answers, too: the user may speak of a draft."""
    said = [m for m in call.messages if call.key == "writer" or m.role == "user"]
    return said[-SHOWN:]


researcher = Agent(
    id="researcher",
    name="Researcher",
    description="Finds facts in the notes of the desk and names its sources. Give it one question at a time.",
    instructions=(
        "You find facts. Search the notes, with other words if the first ones find little, and answer the question in "
        "at most six bullets. Put the source of each fact behind it in brackets, for example [decoherence]. Say only "
        "what the notes say; say plainly what they do not say. When you see what the user wants of research in "
        "general, write it down."
    ),
    memory=Memory(working_memory={"enabled": True, "template": INTERESTS}),
    tools=[search_notes],
)

writer = Agent(
    id="writer",
    name="Writer",
    description="Writes or rewrites a text from facts that it is given. It looks nothing up.",
    instructions=(
        "You write from the facts that you are given and add none. Keep the sources in brackets. Write as the user "
        "likes it; when you see a lasting preference, write it down. Answer with the text alone."
    ),
    memory=Memory(working_memory={"enabled": True, "template": STYLE}),
)

research_desk = Agent(
    id="research-desk",
    name="Research Desk",
    description="Answers questions from its notes: a researcher finds the facts, a writer puts them into words",
    instructions=(
        "You lead a research desk with a researcher and a writer.\n"
        "- Have the researcher answer each question of fact. Independent questions go out at the same time.\n"
        "- For a text of more than a few sentences give the writer the findings, by reference, and say what the text "
        "is for. Tell both what the user has asked for in their own words.\n"
        "- A wish about style alone goes to the writer with the last text.\n"
        "- Nothing was found: say so. Never fill a gap from memory.\n"
        "Answer with the result; do not describe who did what."
    ),
    memory=Memory(last_messages=20, generate_title=True),
    agents={"researcher": researcher, "writer": writer},
    delegation=Delegation(message_filter=background, references=True),
    limits=Limits(delegations=8, depth=1, tokens=200_000, seconds=300),
    max_steps=6,
)
