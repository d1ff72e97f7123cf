"""Runs the packaged model: `python -m local.models.serve MODEL.gguf --port N` in the environment of `runtime.txt`.

The model runs in this process and answers through the shim on 127.0.0.1:N. The process ends on SIGTERM.
"""

import argparse
import os
import secrets
import signal
import threading
from importlib import import_module
from types import FrameType
from typing import Any

from local.models.decide import Ask, Tool, choose_call
from local.models.shim import ShimServer

CONTEXT_TOKENS = 8192
PROMPT_CACHE_MIB = 256  # lets the prompts for decisions and for answers alternate without being read anew


def load(path: str, threads: int) -> Any:
    """Loads the GGUF file at `path`; takes seconds and about 1.3 GiB of memory for 1.5B parameters."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before the import: spinning threads starve a busy machine
    xllamacpp: Any = import_module("xllamacpp")  # only in the environment of runtime.txt
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 0
    params.no_extra_bufts = True  # no second, repacked copy of the weights
    params.use_jinja = True
    params.ui = False
    params.verbosity = 0
    params.port = 0
    params.api_keys = [secrets.token_hex(16)]  # its own HTTP door stays shut: only the shim is spoken to
    return xllamacpp.Server(params)


def warm_up(ask: Ask) -> None:
    """Reads the examples for tool decisions once, so that no user waits for it."""
    choose_call("Hello there!", "", [], [Tool("example", "An example", {})], "auto", ask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="local")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    model = load(options.model, options.threads)
    answer = model.handle_chat_completions  # with a second argument, a function, it streams to that
    warm_up(answer)
    server = ShimServer(options.port, options.name, answer, answer)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=server.shutdown).start()  # shutdown waits for the loop that this handler interrupts

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    server.serve_forever()
    os._exit(0)  # a generation that still runs must not keep the process


if __name__ == "__main__":
    main()
