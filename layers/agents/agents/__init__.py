"""The agents of this deployment. Put yours beside `assistant.py` and name them here."""

from agents.assistant import assistant

agents = [assistant]
