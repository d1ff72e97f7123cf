"""Makes the project's environments, each when its lock file changed. Runs on a bare Python 3.11 or newer."""

import hashlib
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {
    "dev": (ROOT / ".venv", "development tools"),
    "emulator": (ROOT / ".local/venvs/emulator", "the local AWS"),
    "sam": (ROOT / ".local/venvs/sam", "SAM CLI"),
}
CLIENT = ROOT / "clients/python"  # goes into the development environment as it stands here


def stamp_of(*files: Path) -> str:
    """What an environment was made from: lock file and other files, interpreter, place."""
    text = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(text + f"{sys.version}{sys.base_prefix}{ROOT}".encode()).hexdigest()


def install(name: str, home: Path, what: str) -> None:
    """Make the environment `home` from `requirements/<name>.txt`, unless it is made from just that."""
    lock, stamp = ROOT / f"requirements/{name}.txt", home / ".stamp"
    made_from = [lock, *([CLIENT / "pyproject.toml"] if name == "dev" else [])]
    if stamp.exists() and stamp.read_text() == stamp_of(*made_from):
        return
    if home.is_symlink():  # making it anew would empty the one that it links to
        raise SystemExit(f"{home} links to another checkout's environment, made for that one: remove the link")
    count = sum(line[:1].isalnum() for line in lock.read_text().splitlines())
    print(f"  Installing {what} ({count} packages) ...", flush=True)
    venv.create(home, clear=True, with_pip=True)
    # The lock names every package with its hashes, so there is nothing left for pip to resolve.
    pip = [str(home / "bin/python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
    steps = [["--no-deps", "--require-hashes", "--requirement", str(lock)]]
    if name == "dev":  # needs no network: what builds it is in the lock
        steps.append(["--no-deps", "--no-index", "--no-build-isolation", "--editable", str(CLIENT)])
    if any(subprocess.run([*pip, *step]).returncode for step in steps):
        raise SystemExit(f"Installing {what} failed; see above")
    stamp.write_text(stamp_of(*made_from))


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036  whoever calls this may have any Python
        raise SystemExit(f"Threadkeep needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    try:
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(install, name, home, what) for name, (home, what) in ENVIRONMENTS.items()]:
                done.result()
    except KeyboardInterrupt:
        raise SystemExit("\nInterrupted; the next command installs what is missing.") from None


if __name__ == "__main__":
    main()
