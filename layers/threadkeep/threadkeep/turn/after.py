"""What happens after a turn or a delete, driven by the table's stream (DESIGN 4, cases H10, H30).

Each function may be repeated: a job is deleted only when it is done, and each effect is conditional.
"""

import logging

from threadkeep import jsontext
from threadkeep.errors import ConfigurationError, ModelRejected, NotFound
from threadkeep.memory import titles
from threadkeep.storage.port import Job, Thread
from threadkeep.turn.request import Services

PURGE_ROWS = 5_000  # what is removed well within the function's time

_log = logging.getLogger(__name__)


async def finish_turn(services: Services, thread_id: str, run_id: str) -> None:
    """Do the job that a turn left. Raises `ModelUnavailable` or `StoreUnavailable` to be repeated."""
    job = await services.storage.get_job(thread_id, run_id)
    if job is None:
        return
    await titled(services, job)
    await services.storage.delete_job(thread_id, run_id)


async def titled(services: Services, job: Job) -> str:
    """Give the job's thread its title if it has none; the title if it was written, else an empty text."""
    thread = await services.storage.get_thread(job.thread_id)
    title = jsontext.as_object(job.body.get("title"))
    if thread is None or title is None or thread.title:
        return ""
    return await _give_title(services, thread, title)


async def _give_title(services: Services, thread: Thread, wanted: dict[str, jsontext.Json]) -> str:
    """Ask for a title and write it if there is still none; what repeating cannot mend leaves it empty (TT-4)."""
    try:
        newest = await services.storage.list_messages(thread.id, per_page=int(wanted["messages"]))
    except NotFound:  # deleted since it was read; its clean-up waits for this job
        return ""
    given = wanted.get("instructions")
    instructions = given if isinstance(given, str) else None
    try:
        model, name = services.models.resolve(str(wanted["model"]))
        answer = await model.generate(titles.title_request(name, newest.page.items, instructions))
    except (ModelRejected, ConfigurationError):
        _log.warning("no title for thread %s", thread.id, exc_info=True)
        return ""
    title = titles.clean(answer.text)
    return title if title and await services.storage.set_title(thread, title) else ""


async def purge(services: Services, thread_id: str) -> None:
    """Remove what a deleted thread left behind, as much as one call can; the store then asks for the rest."""
    await services.storage.purge_thread(thread_id, limit=PURGE_ROWS)
