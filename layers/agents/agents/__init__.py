"""The agents of this deployment. Put yours beside `assistant.py` and name them here."""

from agents.assistant import assistant
from agents.collaborator import collaborator
from agents.patient_intake import patient_intake
from agents.personal_assistant import personal_assistant
from agents.research_desk import research_desk
from agents.session_notes import session_notes

agents = [assistant, personal_assistant, patient_intake, session_notes, collaborator, research_desk]
