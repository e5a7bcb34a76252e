"""The logger of unjam. Its lines quote exceptions, paths and names of other people, so each is made safe for a terminal."""

from __future__ import annotations

import logging
import traceback

from unjam.system.printable import printable


def _make_safe(record: logging.LogRecord) -> bool:
    try:
        record.msg, record.args = printable(record.getMessage()), ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = printable("".join(traceback.format_exception(*record.exc_info))).rstrip("\n")
    except Exception:  # noqa: BLE001 - the text of a value of the user's: a line of the log must not end their program
        record.msg, record.args = printable(str(record.msg)), ()
    return True


log = logging.getLogger("unjam")
log.addFilter(_make_safe)
