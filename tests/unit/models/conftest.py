import pytest

from tests.scripted import ScriptedModel
from threadkeep.models.port import ModelRequest, PromptMessage, TextPart


@pytest.fixture(scope="module")
def scripted():
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def ask():
    """Build a request whose last user message is the given text."""

    def build(text: str, *before: PromptMessage, **more) -> ModelRequest:
        return ModelRequest("m1", (*before, PromptMessage("user", (TextPart(text),))), **more)

    return build
