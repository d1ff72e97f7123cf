"""Do the tests notice faults? `make mutants`, or `python -m tests.mutation [group ...]`.

Makes one small fault after another in the code that must never be wrong, and runs the tests that should
notice. Each mutant lives in a process of its own, forked from one that has the test tools loaded and an
emulated DynamoDB running; no file changes. Fails where a group's tests notice fewer than 90 of 100.
"""

import importlib.abc
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

from tests.mutation.groups import GROUPS, Group, Part
from tests.mutation.mutants import Mutant, mutants

ENOUGH = 0.9
PACKAGE = Path("layers/threadkeep/threadkeep")


class _Mutated(importlib.abc.MetaPathFinder, SourceFileLoader):
    """Loads the mutant in the place of its module."""

    def __init__(self, part: Part, code: CodeType):
        self.code = code
        SourceFileLoader.__init__(self, part.module, str(PACKAGE.resolve() / part.file))

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        mine = fullname == self.name
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self) if mine else None

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def main(names: list[str]) -> int:
    _load_tools()
    failed = False
    with _emulator():
        for group in GROUPS:
            if not names or group.name in names:
                failed |= not _enough(group)
    return int(failed)


def _enough(group: Group) -> bool:
    killed = made = 0
    for part in group.parts:
        started, survivors = time.monotonic(), list[Mutant]()
        if _exit_code(part, None, 600) != 0:
            raise SystemExit(f"the tests of {part.file} fail without any mutant: pytest {' '.join(part.arguments)}")
        patience, count = 10 + 5 * (time.monotonic() - started), 0
        for mutant in mutants((PACKAGE / part.file).read_text(), part.file, part.functions):
            count += 1
            if _exit_code(part, mutant.code, patience) == 0:
                survivors.append(mutant)
        killed, made = killed + count - len(survivors), made + count
        took = time.monotonic() - started
        print(f"  {part.file}: {count - len(survivors)} of {count} noticed, {took:.0f} s", flush=True)
        for survivor in survivors:
            print(f"    {part.file}:{survivor.line}: {survivor.what}", flush=True)
    print(f"{group.name}: {killed} of {made} noticed, {killed / made:.1%}", flush=True)
    return killed >= ENOUGH * made


def _exit_code(part: Part, code: CodeType | None, patience: float) -> int:
    """What the tests of a part say of a mutant: 0 if they pass. One that takes too long counts as noticed."""
    child = os.fork()
    if child == 0:
        _run_tests(part, code)
    end = time.monotonic() + patience
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def _run_tests(part: Part, code: CodeType | None) -> None:
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    if code is not None:
        sys.meta_path.insert(0, _Mutated(part, code))
    plain = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(pytest.main([*plain, *part.arguments]))


def _load_tools() -> None:
    """Import what every child needs, and nothing that may be mutated."""
    import boto3  # noqa: F401
    import hypothesis
    import pydantic  # noqa: F401
    import pytest_asyncio  # noqa: F401

    hypothesis.settings.register_profile("mutants", database=None, derandomize=True, deadline=None, max_examples=100)
    hypothesis.settings.load_profile("mutants")


@contextmanager
def _emulator() -> Iterator[None]:
    """One emulated AWS for all children: the stack that their tests start is the one that runs already."""
    from local.stack import Stack

    with tempfile.TemporaryDirectory() as folder:
        running = Stack(Path(folder))
        running.start()
        known = vars(running)
        start, stop = Stack.start, Stack.stop
        Stack.start = lambda self: vars(self).update(known)
        Stack.stop = lambda self: None
        try:
            yield
        finally:
            Stack.start, Stack.stop = start, stop
            running.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
