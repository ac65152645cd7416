"""An engine that keeps what it reads.

Apart from the store, so that reading stored readouts does not wait for transformers to be imported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from .forward import Engine, NaNLogits
from .plan import Prompt
from .readout import Readout
from .records import prompt_key
from .store import Store

logger = logging.getLogger(__name__)


class Recorder:
    """An engine that looks into a store first and keeps there what it reads.

    Args:
        engine: reads what is not there.
        store: open for the engine's model.
    """

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    def read(
        self,
        prompts: Sequence[Prompt],
        batch_size: int | None = 1,
        top_k: int | None = None,
        progress: Callable[[int], object] = lambda n: None,
    ) -> Iterator[tuple[int, Readout]]:
        """As `Engine.read`; `top_k` is the store's."""

        def batch_done(n: int) -> None:
            progress(n)
            self._store.flush_if_due()

        keys = [prompt_key(prompt) for prompt in prompts]
        places: dict[bytes, list[int]] = {}
        for index, key in enumerate(keys):
            places.setdefault(key, []).append(index)
        for key, readout in self._store.recall(places):
            for index in places.pop(key):
                yield index, readout
                progress(1)
        if len(places) < len(set(keys)):
            logger.info(
                "%d of %d prompts were found in %s.",
                len(set(keys)) - len(places),
                len(set(keys)),
                self._store.folder,
            )
        missing = [index for own in places.values() for index in own]
        try:
            found = self._engine.read(
                [prompts[i] for i in missing], batch_size, self._store.top_k, batch_done
            )
            for place, readout in found:
                self._store.add(keys[missing[place]], readout)
                yield missing[place], readout
        except NaNLogits as error:
            raise NaNLogits(missing[error.index]) from error
        finally:
            self._store.close()
