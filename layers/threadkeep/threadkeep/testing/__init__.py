"""Suites that every adapter of a port must pass. They need pytest, pytest-asyncio and Hypothesis."""
