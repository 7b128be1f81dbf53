"""Messages of packages that download pretrained weights."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def quiet_download() -> Iterator[None]:
    """Leave out the two lines of huggingface_hub for each failed attempt; the error after the last one has the reason.

    Examples
    --------
    >>> import logging
    >>> from metalabelnet.input_files.weights_download import quiet_download
    >>> with quiet_download():
    ...     logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s [Retry 1/5].")
    """
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
