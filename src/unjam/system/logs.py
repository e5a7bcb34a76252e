"""unjam's logger. It makes each line safe for a terminal, because lines quote foreign text."""

from __future__ import annotations

import logging
import traceback

from unjam.system.printable import printable


def _make_safe(record: logging.LogRecord) -> bool:
    try:
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = printable("".join(traceback.format_exception(*record.exc_info))).rstrip("\n")
    except Exception:  # noqa: BLE001 - user code in __str__ may raise; logging must not end the program
        record.msg, record.args = printable(str(record.msg)), ()
    return True


log = logging.getLogger("unjam")
log.addFilter(_make_safe)
