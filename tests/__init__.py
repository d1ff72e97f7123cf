"""The test suites; a package, so that `python -m tests.scripted` finds this one."""
