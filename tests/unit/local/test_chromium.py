"""Chromium is found, installed where that is possible, or asked for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser.chromium import NoChromium, executable


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs of a bare system, where nobody is root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return tmp_path


def program(folder: Path, name: str, script: str = "") -> Path:
    path = folder / name
    path.write_text(f"#!{shutil.which('sh', path='/bin:/usr/bin')}\n{script}\n")
    path.chmod(0o755)
    return path


def test_an_installed_one_is_taken(system: Path) -> None:
    chrome = program(system, "google-chrome")
    assert executable() == str(chrome)


def test_without_one_the_user_is_told_what_to_install(system: Path) -> None:
    program(system, "apt-get")
    with pytest.raises(NoChromium, match="apt-get install chromium"):
        executable()


def test_root_gets_it_from_apt(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if "install" in command:
            program(system, "chromium")
        return subprocess.CompletedProcess(command, 0, "", "")

    program(system, "apt-get")
    monkeypatch.setattr(subprocess, "run", run)
    assert executable() == str(system / "chromium")
    assert [call[:2] for call in calls] == [["apt-get", "update"], ["apt-get", "install"]]


def test_a_failed_installation_is_shown(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(system, "apt-get", "echo no network; exit 100")
    with pytest.raises(NoChromium, match="no network"):
        executable()
