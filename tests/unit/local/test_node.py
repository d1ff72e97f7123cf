"""Node.js and the packages of a lock file."""

import json
import subprocess
from pathlib import Path

import pytest

from local import node


def lock(folder: Path, **packages: object) -> None:
    """A package whose lock file names these packages beside itself."""
    package = {"name": "checks", "version": "1.0.0"}
    (folder / "package.json").write_text(json.dumps(package))
    content = {**package, "lockfileVersion": 3, "requires": True, "packages": {"": package, **packages}}
    (folder / "package-lock.json").write_text(json.dumps(content))


def test_node_is_new_enough_for_the_client() -> None:
    version = subprocess.run([node.NODE, "--version"], capture_output=True, text=True, check=True).stdout
    assert tuple(map(int, version.strip("v\n").split("."))) >= (22, 13, 0)


def test_this_node_comes_first_in_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    variables = node.environment({"BASE_URL": "http://127.0.0.1"})
    assert variables["PATH"].split(":") == [str(node.NODE.parent), "/usr/bin"]
    assert variables["BASE_URL"] == "http://127.0.0.1"


def test_packages_are_installed_once_and_again_when_the_lock_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, commands = subprocess.run, list[object]()

    def counted(*arguments: object, **options: object) -> object:
        commands.append(arguments)
        (tmp_path / "node_modules").mkdir(exist_ok=True)  # npm makes none where there is nothing to install
        return run(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    lock(tmp_path)
    node.install(tmp_path)
    node.install(tmp_path)
    assert len(commands) == 1
    (tmp_path / "package-lock.json").write_text((tmp_path / "package-lock.json").read_text() + "\n")
    node.install(tmp_path)
    assert len(commands) == 2


def test_a_lock_that_cannot_be_installed_is_told_and_tried_again(tmp_path: Path) -> None:
    lock(tmp_path)
    (tmp_path / "package-lock.json").write_text("{")
    for _ in range(2):
        with pytest.raises(node.NodeError, match="npm ci in"):
            node.install(tmp_path)
    assert not (tmp_path / "node_modules/.stamp").exists()
