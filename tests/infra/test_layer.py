"""The AWS build of the library's layer, made by its own Makefile as `sam build` does."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.stack import EMULATOR_PYTHON, ROOT

LAYER = ROOT / "layers/threadkeep"
LIMIT = 150 * 1024 * 1024  # leaves room for the web adapter and the functions below Lambda's 250 MB
UNCHECKED_HASH = 0b01  # flags of a pyc (PEP 552)
AARCH64, X86_64 = 183, 62  # e_machine of an ELF file


def build(target: Path, **environment: str) -> Path:
    """Build the layer into `target`. Returns the folder that becomes `/opt/python`."""
    variables = os.environ | {"ARTIFACTS_DIR": str(target), "PYTHON": str(EMULATOR_PYTHON)} | environment
    subprocess.run(["make", "-C", str(LAYER), "build-ThreadkeepLayer"], env=variables, check=True, capture_output=True)
    return target / "python"


@pytest.fixture(scope="module")
def lambda_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("lambda"))


@pytest.fixture(scope="module")
def local_layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("local")
    yield build(folder, LOCAL_BUILD="1", WHEELHOUSE=str(folder / "wheels"))
    shutil.rmtree(folder)


def machine(library: Path) -> int:
    head = library.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    return int.from_bytes(head[18:20], "little")


def test_native_code_is_for_python_3_13_on_arm64(lambda_layer: Path) -> None:
    libraries = list(lambda_layer.rglob("*.so*"))
    names = {library.name for library in libraries}
    assert {name.split(".")[0] for name in names} >= {"_pydantic_core", "jiter", "_rust", "_cffi_backend"}
    assert {machine(library) for library in libraries} == {AARCH64}
    assert [name for name in names if ".cpython-" in name and ".cpython-313-" not in name] == []


def test_the_local_build_is_for_this_machine(local_layer: Path) -> None:
    (core,) = local_layer.rglob("_pydantic_core*.so")
    own = importlib.util.find_spec("pydantic_core._pydantic_core")
    assert own is not None
    assert own.origin is not None
    assert core.name == Path(own.origin).name


def test_it_leaves_room_in_lambda(lambda_layer: Path) -> None:
    assert sum(file.stat().st_size for file in lambda_layer.rglob("*") if file.is_file()) < LIMIT


def test_it_holds_the_library_and_every_locked_package(lambda_layer: Path) -> None:
    assert (lambda_layer / "threadkeep/config.py").is_file()
    locked = {
        line.split("==")[0].replace("-", "_").lower()
        for line in (LAYER / "requirements.txt").read_text().splitlines()
        if "==" in line and "emscripten'" not in line.replace("!= 'emscripten'", "")
    }
    installed = {info.name.split("-")[0].replace(".", "_").lower() for info in lambda_layer.glob("*.dist-info")}
    assert installed == locked


@pytest.mark.parametrize(
    "package", ["threadkeep/config", "boto3/__init__", "openai/__init__", "pydantic/__init__", "jwt/__init__"]
)
def test_bytecode_is_unchecked_and_there(local_layer: Path, package: str) -> None:
    assert bytecode_flags(local_layer, package) == UNCHECKED_HASH


def test_lambda_bytecode_is_of_its_own_version(lambda_layer: Path) -> None:
    """Needs a Python 3.13 to compile with; a build without one says so and ships sources only."""
    compiled = {file.suffixes[-2] for file in lambda_layer.rglob("*.pyc")}
    if not compiled:
        pytest.skip("no python3.13 on this machine")
    assert compiled == {".cpython-313"}
    source = lambda_layer / "threadkeep/config.py"
    pyc = source.parent / "__pycache__/config.cpython-313.pyc"
    assert int.from_bytes(pyc.read_bytes()[4:8], "little") == UNCHECKED_HASH
    assert b"/opt/python/threadkeep/config.py" in pyc.read_bytes()


def bytecode_flags(layer: Path, module: str) -> int:
    source = layer / f"{module}.py"
    (pyc,) = (source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")
    return int.from_bytes(pyc.read_bytes()[4:8], "little")


def test_bytecode_is_used(local_layer: Path, tmp_path: Path) -> None:
    """The interpreter does not look at the source, whose time after unzipping is another one: here it is broken."""
    shutil.copytree(local_layer / "threadkeep", tmp_path / "threadkeep")
    (tmp_path / "threadkeep/errors.py").write_text("raise RuntimeError('the source was read')")
    code = "from threadkeep.errors import InvalidInput"
    subprocess.run([str(EMULATOR_PYTHON), "-c", code], env={"PYTHONPATH": f"{tmp_path}:{local_layer}"}, check=True)
