"""Work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def run_in_threads(work: Callable[[Any], None], arguments: Iterable[Any] = range(4)) -> None:
    """Calls ``work`` with each argument in a thread of its own, and raises what the first that
    failed raised."""
    errors: list[BaseException] = []

    def guarded(argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
