"""`MessageHistory`: a thread's messages in the prompt, and the run's messages in the thread (PR-9)."""

from threadkeep.errors import ConfigurationError
from threadkeep.storage.port import Storage
from threadkeep.turn.message_list import MessageList
from threadkeep.turn.processors.base import Processor, ProcessorCall

ALL = 2**53 - 1  # the largest whole number that every JSON reader knows


class MessageHistory(Processor):
    """History at a place of its own among the processors, or of an agent that has no Memory.

    In `input_processors` it puts the newest `last_messages` messages (default: all, M-DISC-5; False also
    means all, 0 none) before the input; in `output_processors` the run is stored. Each replaces what the
    agent's Memory does in that direction. `storage` None means the Memory's, or the deployment's. A run
    without thread and resource passes through. Raises `ConfigurationError` for a negative number.
    """

    id = "message-history"
    name = "MessageHistory"

    def __init__(self, *, storage: Storage | None = None, last_messages: int | bool | None = None):
        if last_messages is True or (last_messages is not None and last_messages < 0):
            raise ConfigurationError(
                "MessageHistory: last_messages must be a whole number of at least 0, False or None"
            )
        self.storage = storage
        self.last_messages = ALL if last_messages is None or last_messages is False else last_messages

    def process_input(self, messages: MessageList, call: ProcessorCall) -> MessageList:
        """Put what the run loaded in its place; the loading itself is part of the turn's one round of reads."""
        return messages.plus(*call.facts.history)
