"""Delegation: a supervisor's sub-agents as tools of its run (DESIGN 6, DEL-1 to DEL-27)."""
