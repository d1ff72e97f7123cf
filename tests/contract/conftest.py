import pytest

# The suite is a library, not a test module; without this its assertions would fail without saying why.
pytest.register_assert_rewrite("threadkeep.testing.storage_contract", "threadkeep.testing.storage_machine")
