"""The application on this machine: MiniStack as the cloud, `sam build` and `sam deploy` with the real template.

Neither Docker nor an AWS account. `make up` and the tests use the same class. Everything that a
stack writes is in its `home`; what it is right now is in `home/stack.json`, the record.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from local.processes import find_process, terminate

ROOT = Path(__file__).resolve().parent.parent
EMULATOR_PYTHON = ROOT / ".local/venvs/emulator/bin/python"
EMULATOR_STAMP = ROOT / ".local/venvs/emulator/.stamp"  # changes with its packages and its Python
SAM = ROOT / ".local/venvs/sam/bin/sam"
STACK_NAME = "threadkeep-local"
REGION = "us-east-1"
PROGRAMS = {"emulator": "local/emulator.py", "front_door": "local.front_door"}

# The template's parameters that a variable of the environment may set, so that `DEFAULT_MODEL=... make up` works.
PARAMETERS = {
    "DEFAULT_MODEL": "DefaultModel",
    "JWT_AUDIENCE": "JwtAudience",
    "JWT_ISSUER": "JwtIssuer",
    "JWT_RESOURCE_CLAIM": "JwtResourceClaim",
    "MODEL_KEY_SECRET": "ModelKeySecret",
    "OPENAI_BASE_URL": "OpenAiBaseUrl",
    "TURN_DEADLINE_SECONDS": "TurnDeadlineSeconds",
}
# What functions get on top, as they run with the emulator's environment.
PASSED_ON = ("OPENAI_API_KEY", "SCRIPTED_BASE_URL")


class StackError(Exception):
    """The stack cannot be started, built or deployed. The text says why and where the log is."""


Process = subprocess.Popen[bytes]


def quiet(_: str) -> None:
    """Say nothing about progress."""


def free_port(wish: int = 0) -> int:
    """A free TCP port on 127.0.0.1: `wish` if it is free, else any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wish))
        except OSError:
            return free_port()
        return int(probe.getsockname()[1])


@dataclass
class Stack:
    """One local deployment.

    `home`: the folder for its state. `agents`: the package deployed as `agents`; None is the
    one in `layers/agents`. `parameters`: of the template. `environment`: extra variables for
    the functions. `persist`: keep tables and all else over a stop. `auth`: enforce the
    template's IAM policies. `port`: of the emulator, taken if free; 0 is any. `parent`: stop when the process
    that started it ends. `say`: gets one short line per step.
    """

    home: Path
    agents: Path | None = None
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    persist: bool = False
    auth: bool = False
    port: int = 0
    parent: bool = True
    root: Path = ROOT
    say: Callable[[str], None] = quiet

    def __post_init__(self) -> None:
        self.home = self.home.resolve()
        self.home.mkdir(parents=True, exist_ok=True)
        self.agents = (self.agents or self.root / "layers/agents/agents").resolve()
        if not (self.agents / "__init__.py").is_file():
            raise StackError(f"{self.agents} is no Python package: it has no __init__.py")

    # --- the record ---

    @property
    def record_path(self) -> Path:
        return self.home / "stack.json"

    @property
    def record(self) -> dict[str, Any]:
        """What is known of the running stack: ports, API, deployed sources. What cannot be read is as good as none."""
        with suppress(OSError, ValueError):
            read: Any = json.loads(self.record_path.read_text())
            if isinstance(read, dict):
                return cast(dict[str, Any], read)
        return {}

    def remember(self, **values: Any) -> None:
        fresh = self.record_path.with_suffix(".new")
        fresh.write_text(json.dumps(self.record | values, indent=2))
        fresh.replace(self.record_path)

    @contextmanager
    def alone(self) -> Generator[None]:
        """Waits until no other command works on this stack, and keeps others waiting."""
        with (self.home / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say("Waiting for another command that works on this stack")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- the emulator ---

    @property
    def endpoint(self) -> str:
        """The URL of the emulated AWS services."""
        return f"http://127.0.0.1:{self.record['emulator_port']}"

    def start(self) -> None:
        """Start the emulator and wait until it answers. Raises `StackError` with its log if it does not.

        An emulator that was killed has lost what was deployed since it started, so that is deployed again.
        """
        if not (self.persist and self.record.get("saved")):
            self.remember(deployed=None)
        port = free_port(self.record.get("emulator_port") or self.port)
        scratch = self.home / "tmp"  # the emulator leaves the folders of its workers behind
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        environment = {name: value for name, value in os.environ.items() if inherited(name)} | {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "IOT_MTLS_ENABLED": "0",
            "TMPDIR": str(scratch),
            "UNPACKED_DIR": str(scratch / "unpacked"),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }
        if self.persist:
            environment |= {"PERSIST_STATE": "1", "STATE_DIR": str(self.home / "state")}
            environment |= {"S3_PERSIST": "1", "S3_DATA_DIR": str(self.home / "s3")}
        if self.auth:
            environment["AUTH"] = "true"
        if self.parent:
            environment["EMULATOR_PARENT"] = str(os.getpid())
        self.remember(emulator_port=port, environment=self.environment_digest(), auth=self.auth, saved=False)
        process = self.detach("emulator", [str(EMULATOR_PYTHON), str(ROOT / "local/emulator.py"), str(self.home)],
                              environment | dict(self.environment))  # fmt: skip
        self.await_answer("emulator", process, f"http://127.0.0.1:{port}/_ministack/health")

    def environment_digest(self) -> str:
        """What tells whether the functions' extra variables have changed; they may hold keys, which no file gets."""
        return hashlib.sha256(json.dumps(sorted(self.environment.items())).encode()).hexdigest()

    def pid(self, name: str) -> int:
        """The process id of the `emulator` or the `front_door`; 0 if it does not run."""
        return find_process(PROGRAMS[name], str(self.home))

    def detach(self, name: str, command: list[str], environment: Mapping[str, str]) -> Process:
        """Run `command` in a session of its own, with its output in `home/<name>.log`."""
        with (self.home / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def await_answer(self, name: str, process: Process, url: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.home / f"{name}.log").read_text(errors="replace")
                raise StackError(f"The {name} does not answer at {url}; the logs are in {self.home}\n{log[-4000:]}")
            time.sleep(0.05)
        process.returncode = 0  # it may outlive this process: no warning when the object goes

    def running(self) -> bool:
        """Whether the emulator runs and answers."""
        known = self.pid("emulator") and "emulator_port" in self.record
        return bool(known) and answers(f"{self.endpoint}/_ministack/health")

    def as_wanted(self) -> bool:
        """Whether the emulator was started with the environment that this object asks for."""
        return (self.record.get("environment"), self.record.get("auth")) == (self.environment_digest(), self.auth)

    def stop(self) -> None:
        """End the processes; the emulator first saves its state if it keeps any."""
        if pid := self.pid("front_door"):
            terminate(pid)
        if pid := self.pid("emulator"):
            self.remember(saved=terminate(pid))

    # --- build and deploy ---

    @property
    def build_dir(self) -> Path:
        """Where the build is; stacks with the same agents share it."""
        folder = self.root / ".local/build"
        return folder / hashlib.sha256(str(self.agents).encode()).hexdigest()[:12]

    def sources(self) -> str:
        """A hash of everything that the build depends on."""
        assert self.agents
        folders = (self.root / "functions", self.root / "layers", self.root / "statemachines", self.agents)
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        single = [self.root / "template.yaml", self.root / "samconfig.toml", EMULATOR_STAMP]
        return digest(sorted(path for path in files + single if "__pycache__" not in path.parts))

    def build(self) -> Path:
        """Build what has changed. Returns the folder of the built template. Raises `StackError`."""
        sources, stamp = self.sources(), self.build_dir / ".sources"
        self.build_dir.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.build_dir}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if stamp.exists() and stamp.read_text() == sources:
                return self.build_dir
            self.say("Building functions and layers")
            wheels = self.wheelhouse()
            self.sam("build", "--template", str(self.root / "template.yaml"), "--build-dir", str(self.build_dir),
                     "--parallel", LOCAL_BUILD="1", PYTHON=str(EMULATOR_PYTHON), AGENTS_DIR=str(self.agents),
                     WHEELHOUSE=str(wheels))  # fmt: skip
            stamp.write_text(sources)
        return self.build_dir

    def wheelhouse(self) -> Path:
        """Where the layer's wheels for the emulator's Python are kept between builds; those for another one go."""
        wheels = digest([self.root / "layers/threadkeep/requirements.txt", EMULATOR_STAMP])[:12]
        folder = self.root / ".local/wheels"
        for old in folder.glob("*"):
            if old.name != wheels:
                shutil.rmtree(old, ignore_errors=True)
        return folder / wheels

    def deploy(self) -> bool:
        """Build, deploy if anything differs from what is deployed, and read the outputs.

        Returns whether it deployed. Raises `StackError`.
        """
        parameters = {"Stage": "local"} | dict(self.parameters)
        port = self.record["emulator_port"]
        wanted = {"sources": self.sources(), "parameters": parameters, "emulator_port": port}
        if self.record.get("deployed") == wanted and answers(f"{self.record['api_url']}/health"):
            return False
        build = self.build()
        self.say("Deploying the template")
        overrides = [f'{name}="{value}"' for name, value in parameters.items()]
        self.sam("deploy", "--config-file", str(self.root / "samconfig.toml"), "--config-env", "local",
                 "--template-file", str(build / "template.yaml"), "--parameter-overrides", *overrides)  # fmt: skip
        stack = self.client("cloudformation").describe_stacks(StackName=STACK_NAME)["Stacks"][0]
        self.forget_earlier_deployments()
        outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
        api_url = f"{self.endpoint}/_aws/execute-api/{outputs['RestApiId']}/v1"
        if not answers(f"{api_url}/health", seconds=60):
            if wrong := self.wrong_with_agents():
                raise StackError(f"The agents in {self.agents} cannot be loaded:\n{wrong}")
            raise StackError(f"The API does not answer. `make down`, then removing {self.home}, starts afresh; "
                             "what is stored there goes with it")  # fmt: skip
        self.remember(outputs=outputs, api_url=api_url, deployed=wanted)
        return True

    def wrong_with_agents(self) -> str:
        """Why the agents' package cannot be loaded: the end of a traceback; empty if it can."""
        assert self.agents
        load = "from threadkeep.agents import Registry; Registry.load('agents')"
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "agents"
            package.symlink_to(self.agents)
            path = os.pathsep.join([folder, str(self.root / "layers/threadkeep")])
            done = subprocess.run([sys.executable, "-B", "-c", load], env=os.environ | {"PYTHONPATH": path},
                                  capture_output=True, text=True)  # fmt: skip
        return done.stderr.strip()[-2000:].replace(str(package), str(self.agents)) if done.returncode else ""

    def forget_earlier_deployments(self) -> None:
        """Delete archives that the deployed template does not name, and old layer versions: the emulator keeps all."""
        deployed = json.dumps(self.client("cloudformation").get_template(StackName=STACK_NAME)["TemplateBody"])
        s3, functions = self.client("s3"), self.client("lambda")
        for bucket in (entry["Name"] for entry in s3.list_buckets()["Buckets"]):
            if bucket.startswith("aws-sam-cli-managed"):
                listed = s3.list_object_versions(Bucket=bucket)
                for entry in [*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())]:
                    if entry["Key"] not in deployed:
                        s3.delete_object(Bucket=bucket, Key=entry["Key"], VersionId=entry["VersionId"])
        for layer in functions.list_layers()["Layers"]:
            newest = layer["LatestMatchingVersion"]["Version"]
            for version in functions.list_layer_versions(LayerName=layer["LayerName"])["LayerVersions"]:
                if version["Version"] != newest:
                    functions.delete_layer_version(LayerName=layer["LayerName"], VersionNumber=version["Version"])

    def sam(self, *arguments: str, **environment: str) -> None:
        """Run SAM CLI against the emulator."""
        variables = os.environ | self.credentials() | {"SAM_CLI_TELEMETRY": "0"} | environment
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):
            variables.pop(name, None)
        process = subprocess.Popen([str(SAM), *arguments], cwd=self.root, env=variables, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)  # fmt: skip
        try:
            output, _ = process.communicate()
        except BaseException:  # an interrupt: what it has started goes with it
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
        if process.returncode:
            raise StackError(f"sam {arguments[0]} failed:\n{output[-6000:]}")

    def credentials(self) -> dict[str, str]:
        """The variables with which an AWS SDK finds the emulator."""
        address = {"AWS_ENDPOINT_URL": self.endpoint} if "emulator_port" in self.record else {}
        return address | {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",
        }

    def client(self, service: str) -> Any:
        """A boto3 client of the emulated service."""
        import boto3
        from botocore.config import Config

        return cast(Any, boto3).client(  # the service's own type is the caller's to name
            service, endpoint_url=self.endpoint, region_name=REGION, config=Config(inject_host_prefix=False),
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip

    # --- what callers need ---

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs of the deployed template."""
        return self.record["outputs"]

    @property
    def api_url(self) -> str:
        """The base URL of the deployed REST API, stage included; routes start with `/api` below it."""
        return self.record["api_url"]

    @property
    def base_url(self) -> str:
        """The base URL of the front door."""
        return f"http://127.0.0.1:{self.record['front_door_port']}"

    def service_key(self) -> str:
        """The key of the trusted server, from Secrets Manager."""
        secret = self.client("secretsmanager").get_secret_value(SecretId=self.outputs["ServiceKeySecretArn"])
        return secret["SecretString"]

    def check_port(self, port: int) -> None:
        """Raises `StackError` if another program has the port on which the front door is to open."""
        ours = find_process(PROGRAMS["front_door"], f"{port} {self.home}")
        if port and not ours and free_port(port) != port:
            raise StackError(f"Port {port} is taken; choose another one with PORT=...")

    def serve(self, port: int = 0) -> None:
        """Open the front door on `port`, or on any free port. Raises `StackError` if the port is taken.

        It runs the streaming routes itself, so it is opened anew where something else is deployed.
        """
        self.check_port(port)
        record = self.record
        if pid := self.pid("front_door"):
            open_port = record.get("front_door_port")
            serves = record.get("front_door_serves") == self.front_door_serves()
            if serves and open_port and port in (0, open_port):
                return
            port = port or open_port or 0
            terminate(pid)
        port = free_port(port)
        self.remember(front_door_port=port, front_door_serves=self.front_door_serves())
        command = [sys.executable, "-m", PROGRAMS["front_door"], str(port), str(self.home)]
        process = self.detach("front_door", command, self.front_door_environment())
        self.await_answer("front_door", process, f"{self.base_url}/health")

    def front_door_serves(self) -> list[Any]:
        """What tells whether a running front door is that of what is deployed."""
        return [self.record["deployed"], self.environment_digest()]

    def front_door_environment(self) -> dict[str, str]:
        """The variables of the deployed streaming function and of the authorizer, the agents, and the emulator."""
        paths = (ROOT, ROOT / "layers/threadkeep", self.build_dir / "AgentsLayer/python")
        functions = (self.function_environment(name) for name in ("AuthorizerFunction", "StreamFunction"))
        variables = {name: value for function in functions for name, value in function.items()}
        ours = self.credentials() | dict(self.environment) | {"PYTHONPATH": ":".join(map(str, paths))}
        return {**os.environ, **variables, **ours}

    def function_environment(self, name: str) -> dict[str, str]:
        """The environment variables of a deployed function, by its name in the template."""
        found = self.client("cloudformation").describe_stack_resource(StackName=STACK_NAME, LogicalResourceId=name)
        function = found["StackResourceDetail"]["PhysicalResourceId"]
        configuration = self.client("lambda").get_function_configuration(FunctionName=function)
        return configuration.get("Environment", {}).get("Variables", {})


def inherited(name: str) -> bool:
    """Whether the emulator, and so the functions, see a variable of this process: what reaching the network needs."""
    return name in ("PATH", "HOME", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR") or name.lower().endswith(
        ("_proxy", "_ca_bundle")
    )


def answers(url: str, seconds: float = 10) -> bool:
    """Whether `url` answers 200 within `seconds`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=seconds) as response:
            return response.status == 200
    except (OSError, urllib.error.URLError):
        return False


def digest(paths: Iterable[Path]) -> str:
    """A hash of the names and contents of files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
