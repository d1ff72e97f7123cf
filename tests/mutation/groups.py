"""Which code must never be wrong, and which tests answer for it."""

from dataclasses import dataclass
from pathlib import Path

CONTRACT = "tests/contract/test_storage_contract.py"
UNIT = "tests/unit/storage"
LISTS = "tests/contract/test_dynamodb_lists.py"
HTTP = (
    "tests/unit/http/test_http_threads.py",
    "tests/unit/http/test_http_memory.py",
    "tests/unit/http/test_http_gateway.py",
)
TURNS = tuple(f"tests/unit/turn/test_{name}.py" for name in ("run", "receipts", "client_tools", "limits"))


@dataclass(frozen=True, slots=True)
class Part:
    """A file below the package, or only some of its functions, with the arguments of pytest for their tests."""

    file: str
    arguments: tuple[str, ...]
    functions: frozenset[str] | None = None

    @property
    def module(self) -> str:
        return ".".join(("threadkeep", *Path(self.file).with_suffix("").parts))


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    parts: tuple[Part, ...]


def _part(file: str, *arguments: str, only: str = "") -> Part:
    return Part(file, arguments, frozenset(only.split()) or None)


def _on_table(words: str, *files: str) -> tuple[str, ...]:
    """The contract on the emulated DynamoDB and these files, of them the tests with these words in their names."""
    return *files, CONTRACT, "-k", f"not TestInMemory and not random and ({words})"


FAKE = (UNIT, CONTRACT, "-k", "not TestDynamoDB and not random")

GROUPS = (
    Group(
        "keys",
        (_part("ids.py", "tests/unit/test_ids.py"), _part("storage/dynamodb/keys.py", f"{UNIT}/test_keys.py")),
    ),
    Group(
        "order",
        (
            _part("storage/order.py", f"{UNIT}/test_storage_order.py"),
            _part("storage/rules.py", *FAKE, only="number saved with_ids position merged touched copy_id"),
        ),
    ),
    Group(
        "pages",
        (
            _part(
                "storage/rules.py",
                *FAKE,
                only="Window history_window is_conversation cut page_of time_range is_filter passes has_values _same "
                "check_walk chunks MAX_FILTERED CONVERSATION_ROLES HIDDEN_ROLES",
            ),
            _part("storage/dynamodb/listing.py", *_on_table("list or page or front or owner", LISTS)),
            _part(
                "storage/dynamodb/messages.py",
                *_on_table("page or messages or mrc or ms9 or filter"),
                only="list_messages _unfiltered _cut _matching _walk list_resource_messages ascending Window",
            ),
            _part(
                "http/messages.py", "tests/unit/http/test_http_messages.py", *HTTP, only="match direction list_messages"
            ),
        ),
    ),
    Group(
        "owners",
        (
            _part(
                "storage/rules.py",
                *FAKE,
                only="check_owner same_thread doomed changed without may_take clone_target",
            ),
            _part(
                "storage/dynamodb/requests.py",
                *_on_table("owner or late or racing or race or th8 or th15 or title or delete or counters"),
                only="_ALIVE if_alive rewrite directory_key enter leave _count NEW",
            ),
            _part(
                "storage/dynamodb/requests.py", *_on_table("sub or del6 or h17 or deleted"), only="link not_deleting"
            ),
            _part(
                "storage/dynamodb/purges.py",
                *_on_table(
                    "sub or go_with or with_a_thread_go or purge_of", "tests/contract/test_dynamodb_journals.py"
                ),
                only="_bury _bury_subs _forget_journals",
            ),
            _part(
                "storage/dynamodb/journals.py",
                *_on_table("a_run or runs_of or commit_within or last_commit"),
                only="guarded _if_in _change create_run list_runs",
            ),
            _part(
                "storage/dynamodb/part.py",
                *_on_table("owner or late or missing or unknown or th8 or th15 or ms4 or ms8 or h29"),
                only="owned same home_of",
            ),
            _part(
                "storage/dynamodb/threads.py",
                *_on_table("owner or th8 or th15 or delete or taken or creat or purge or title"),
                only="create_thread update_thread transfer_thread delete_thread set_title _existing",
            ),
            _part("storage/dynamodb/messages.py", *_on_table("mrc7"), only="_included _around"),
            _part("http/identity.py", "tests/unit/http/test_http_identity.py"),
            _part(
                "http/threads.py",
                *HTTP,
                only="create_thread get_thread list_threads update_thread transfer_thread delete_thread _owned _list "
                "_list_filtered _has",
            ),
            _part("turn/run.py", *TURNS, only="_load _created"),
            _part("turn/plan.py", "tests/unit/turn/test_request_context.py", only="own_context _overridden _text"),
        ),
    ),
    Group(
        "writers",
        (_part("memory/working_memory/writing.py", "tests/unit/memory/test_working_memory_writing.py"),),
    ),
)
