"""Studio's pages before a front door: filled, fetched by hash, and the only callers that get a credential."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from local import node, studio
from local.front_door import create_app
from tests.unit.local.asgi_server import served

INDEX = "<base href='%%MASTRA_STUDIO_BASE_PATH%%/'>'%%MASTRA_AUTO_DETECT_URL%%' '%%MASTRA_CLOUD_API_ENDPOINT%%'"
OURS = {"host": "127.0.0.1:4111", "sec-fetch-site": "same-origin"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with files as Studio has them."""
    home = tmp_path / "studio"
    (home / "assets").mkdir(parents=True)
    (home / "index.html").write_text(INDEX)
    (home / "assets/main.js").write_text("start('%%MASTRA_API_PREFIX%%')")
    (tmp_path / "secret").write_text("not Studio's")
    return home


async def echo(request: Request) -> JSONResponse:
    return JSONResponse({"path": request.url.path, "credential": request.headers.getlist("authorization")})


@pytest.fixture
def client(home: Path) -> Iterator[TestClient]:
    door = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    with TestClient(studio.with_studio(door, lambda: "the-key", home), follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize("path", ["/studio", "/studio/", "/studio/agents/x/threads/new", "/studio/index.html"])
def test_paths_within_the_page_get_the_page_with_its_placeholders_filled(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.text == "<base href='/studio/'>'true' ''"
    assert answer.headers["content-type"].startswith("text/html")


def test_no_other_site_may_frame_the_page(client: TestClient) -> None:
    assert client.get("/studio").headers["content-security-policy"] == "frame-ancestors 'none'"


def test_files_are_served_as_they_are(client: TestClient) -> None:
    answer = client.get("/studio/assets/main.js")
    assert answer.text == "start('%%MASTRA_API_PREFIX%%')"
    assert answer.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("path", ["assets/gone.js", "refresh-events"])
def test_what_is_no_page_is_missing(client: TestClient, path: str) -> None:
    assert client.get(f"/studio/{path}").status_code == 404


@pytest.mark.parametrize("path", ["../secret", "..%2Fsecret", "assets/..%2F..%2Fsecret", "%2Fetc%2Fpasswd"])
def test_no_path_leads_out_of_the_folder(client: TestClient, path: str) -> None:
    answer = client.get(f"/studio/{path}")
    assert "not Studio's" not in answer.text and "root:" not in answer.text


def test_the_address_itself_leads_to_studio(client: TestClient) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/studio")


def test_before_it_was_fetched_there_is_no_studio(home: Path) -> None:
    door = Starlette(routes=[Route("/{path:path}", echo)])
    with TestClient(studio.with_studio(door, lambda: "the-key", home / "gone")) as client:
        for path in ("/", "/studio", "/api/agents"):
            assert client.get(path, headers=OURS).json() == {"path": path, "credential": []}


@pytest.mark.parametrize("host", ["127.0.0.1:4111", "localhost:9000", "[::1]:4111"])
def test_requests_of_the_page_get_the_credential(client: TestClient, host: str) -> None:
    answer = client.get("/api/agents", headers=OURS | {"host": host})
    assert answer.json() == {"path": "/api/agents", "credential": ["Bearer the-key"]}


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:4111"},  # no browser
        OURS | {"sec-fetch-site": "cross-site"},  # another site's page
        OURS | {"sec-fetch-site": "same-site"},  # a page of another port of this machine
        OURS | {"sec-fetch-site": "none"},  # typed by hand
        OURS | {"host": "rebound.example:4111"},  # a foreign name that leads here
        OURS | {"host": "127.0.0.1.example"},
        OURS | {"host": ""},
    ],
)
def test_nobody_else_gets_the_credential(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/agents", headers=headers).json()["credential"] == []


def test_a_credential_of_the_pages_own_stays(client: TestClient) -> None:
    answer = client.post("/api/x", headers=OURS | {"authorization": "Bearer a-token"})
    assert answer.json()["credential"] == ["Bearer a-token"]


def test_without_a_credential_nothing_is_added(home: Path) -> None:
    door = Starlette(routes=[Route("/{path:path}", echo)])
    with TestClient(studio.with_studio(door, lambda: "", home)) as client:
        assert client.get("/api/agents", headers=OURS).json()["credential"] == []


def archive(folder: Path, **files: str) -> Path:
    path = folder / "mastra.tgz"
    with tarfile.open(path, "w:gz") as package:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            package.addfile(entry, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that npm was asked for; it has one with a page and a script."""
    asked: list[str] = []

    def pack(package: str, folder: Path) -> Path:
        asked.append(package)
        files = {"package/dist/studio/index.html": "page", "package/dist/index.js": "code"}
        return archive(folder, **files)

    monkeypatch.setattr(node, "pack", pack)
    return asked


def test_another_archive_than_the_tested_one_is_refused_and_leaves_nothing(tmp_path: Path, packed: list[str]) -> None:
    with pytest.raises(studio.StudioError, match=r"is not the archive that was tested: sha512-\S+"):
        studio.fetch(lambda _: None, tmp_path / "home")
    assert list(tmp_path.iterdir()) == []
    assert packed == [f"mastra@{studio.VERSION}"]


def test_the_tested_archive_is_fetched_once_and_only_studio_is_kept(
    tmp_path: Path, packed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studio, "_integrity", lambda _: studio.INTEGRITY)
    for _ in range(2):
        studio.fetch(lambda _: None, tmp_path / "home")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["index.html"]
    assert len(packed) == 1


def test_the_front_door_of_another_deployment_passes_events_on_as_they_come() -> None:
    """The second event is sent once the first has arrived at the other end."""
    arrived: list[bool] = []

    async def events(_: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            for _ in range(500):
                if arrived:
                    break
                await asyncio.sleep(0.01)
            yield b"data: 2\n\n" if arrived else b"data: too late\n\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")

    with (
        served(Starlette(routes=[Route("/v1/api/stream", events, methods=["POST"])])) as api,
        served(create_app(lambda: f"{api}/v1")) as door,
        httpx.Client(trust_env=False) as client,
        client.stream("POST", f"{door}/api/stream", json={}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        told: list[Any] = []
        for line in answer.iter_lines():
            told.append(line)
            arrived.append(True)
    assert [line for line in told if line] == ["data: 1", "data: 2"]
