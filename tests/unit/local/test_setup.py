"""Making the environments."""

from pathlib import Path

import pytest

from local.setup import install


def test_the_environment_of_another_checkout_is_left_alone(tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    link = tmp_path / "link"
    link.symlink_to(other)
    with pytest.raises(SystemExit, match="links to another checkout's environment"):
        install("sam", link, "SAM CLI")
    assert [file.name for file in other.iterdir()] == ["kept"]
