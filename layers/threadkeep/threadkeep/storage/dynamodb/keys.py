"""The keys of every item, in one place. They are frozen: `tests/infra` guards them."""

from hashlib import sha256
from zlib import crc32

from threadkeep.clock import Millis
from threadkeep.ids import decode, encode, resource_parts

SELF = "@"  # the sort key of a thread's or a resource's own row; sorts before every other prefix
MESSAGE = "M#"
JOB = "J#"
DIRECTORY = "T#"
CLONE = "C#"
APPROVAL = "A#"
MEMORY = "W"  # the sort key of a thread's or a resource's working memory
LIVE = "H"  # the sort key of the row that orders a thread's live runs
QUEUED = "Q#"
OUTPUT = "C#"
ACCEPTED = "Q"  # the sort key, below a run's partition, that makes its id known
RECORD = "R"  # the sort key, below a run's partition, of a durable run
ENTRY = "E#"
JOURNAL = "N#"  # below a thread's partition: leads to a journal that goes with the thread
SUB = "S#"  # below a thread's or a resource's partition: what sub-agents have of it
SHARDS = 8  # of the index that lists threads of all owners


def thread(thread_id: str) -> str:
    return f"T#{encode(thread_id)}"


def message_key(message_id: str) -> str:
    """The partition that finds a message by its id alone: one row for each thread that has such a message."""
    return f"K#{encode(message_id)}"


def message_id_of(pk: str) -> str:
    """The message id in a `K#` partition key."""
    return decode(pk.removeprefix("K#"))


def resource(resource_id: str) -> str:
    """A sub-agent's resource is a pair: that of its owner and its key, each escaped, so that no id gives the same."""
    return "R#" + "/".join(map(encode, resource_parts(resource_id)))


def sub(identifier: str) -> str:
    """The sort key of the link to a sub-agent's thread, or to its resource by its key."""
    return f"{SUB}{encode(identifier)}"


def message(order: str, message_id: str) -> str:
    return f"{MESSAGE}{order}#{encode(message_id)}"


def messages_from(order: str) -> str:
    """Sorts before every message whose order is this one or a later one."""
    return f"{MESSAGE}{order}"


def messages_to(order: str) -> str:
    """Sorts behind every message whose order is this one or an earlier one."""
    return f"{MESSAGE}{order}~"


def messages_end() -> str:
    """Sorts behind every message."""
    return f"{MESSAGE}~"


def live(resource_id: str, thread_id: str) -> str:
    """The partition of the runs of a thread that subscribers see. The owner is a part of it."""
    return f"L#{encode(resource_id)}/{encode(thread_id)}"


def queued(ticket: int) -> str:
    return f"{QUEUED}{ticket:015d}"


def output(ticket: int, row: int) -> str:
    return f"{OUTPUT}{ticket:015d}#{row:08d}"


def receipt(key: str) -> str:
    """Receipts are found by a digest: their keys hold whole headers, of any length."""
    return f"I#{sha256(key.encode()).hexdigest()}"


def run(run_id: str) -> str:
    return f"N#{encode(run_id)}"


def run_of(pk: str) -> str:
    """The run id in an `N#` partition key."""
    return decode(pk.removeprefix("N#"))


def entry(name: str) -> str:
    """The sort key, below a journal's partition, of an entry; names need no escapes."""
    return f"{ENTRY}{name}"


def journal(created_at: Millis, journal_id: str) -> str:
    """The sort key, below a thread's partition, of the pointer to a journal; 0 where no run has it."""
    return f"{JOURNAL}{moment(created_at, journal_id)}"


def approval(run_id: str) -> str:
    """The sort key, below a resource's partition, of the pointer to a run of it that waits for an approval."""
    return f"{APPROVAL}{encode(run_id)}"


def waiting(agent_id: str) -> str:
    """The `g2` partition of an agent's runs that wait for an approval, by the time when they were suspended."""
    return f"WAITING#{encode(agent_id)}"


def job(run_id: str) -> str:
    return f"{JOB}{encode(run_id)}"


def clone(thread_id: str) -> str:
    """The sort key, below the source's partition, of the link to a copy."""
    return f"{CLONE}{encode(thread_id)}"


def directory(created_at: Millis, thread_id: str) -> str:
    return f"{DIRECTORY}{moment(created_at, thread_id)}"


def moment(at: Millis, thread_id: str) -> str:
    """A sort key that orders threads by a time, and by id within one millisecond."""
    return f"{at:015d}#{encode(thread_id)}"


def shard(thread_id: str) -> str:
    """The `g2` partition of a thread; spread by a hash that is the same in every process."""
    return shard_name(crc32(thread_id.encode()) % SHARDS)


def shard_name(number: int) -> str:
    return f"THREADS#{number}"


def thread_of(pk: str) -> str:
    """The thread id in a `T#` partition key."""
    return decode(pk.removeprefix("T#"))


DELETING = "DELETING"  # the `g2` partition of tombstones, by the time of their delete
