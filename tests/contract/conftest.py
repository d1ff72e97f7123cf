import pytest

# The suite is a library, not a test module; without this its assertions would fail without saying why.
pytest.register_assert_rewrite("tests.contract.storage_contract", "tests.contract.storage_machine")
