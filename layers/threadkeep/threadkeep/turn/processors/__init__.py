"""Processors: what a deployer puts between the conversation and the model, in both directions (PR-1 to PR-14).

`base` is the contract, `pipeline` runs them in order, `model` puts them around each model call; each of
the others is one built-in processor.
"""
