import pytest

# The suites are a library, not test modules; without this their assertions would fail without saying why.
pytest.register_assert_rewrite("threadkeep.testing")
