"""Why a working memory was not changed."""

from collections.abc import Mapping

from threadkeep.errors import InvalidInput, Issue


class Invalid(Exception):
    """An update that breaks schema, type or size; `problems` maps a dotted path, `root` for the whole, to a reason."""

    def __init__(self, problems: Mapping[str, str]):
        super().__init__("; ".join(f"{path}: {reason}" for path, reason in problems.items()))
        self.problems = dict(problems)

    def at(self, field: str) -> InvalidInput:
        """The same for a caller: each problem as an issue of or below `field`."""
        return InvalidInput(
            *(Issue(field if path == "root" else f"{field}.{path}", why) for path, why in self.problems.items())
        )
