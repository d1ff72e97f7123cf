"""Delegation across functions: a state machine runs one task for each order of a step (DESIGN 6)."""
