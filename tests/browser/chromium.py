"""The Chromium of the system, which Playwright drives: Debian's package, installed where that is possible."""

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE = "chromium"
OPTIONS = (
    "--no-sandbox",  # it refuses to run as root with one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing is asked of the internet
)


class NoChromium(Exception):
    """There is none, and it cannot be installed. The text says what to do."""


def executable() -> str:
    """The path of an installed Chromium. Raises `NoChromium`."""
    found = _installed()
    if found is None:
        _install()
        found = _installed()
    if found is None:
        raise NoChromium(f"None of {', '.join(NAMES)} is in the path, after installing the package {PACKAGE}")
    return found


def _installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _install() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoChromium(f"The tests in tests/browser need Chromium: `apt-get install {PACKAGE}` as root, or its like")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGE]):
        done = subprocess.run(["apt-get", *words], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise NoChromium(f"apt-get {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
