"""Suites that every adapter of a port must pass; importable, so that other adapters can run them."""
