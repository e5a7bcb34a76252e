"""Every time limit in unjam, by name, with the reason for its length.

A wait without an entry here is a bug; a test reads the source and checks this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A named number of seconds."""

    name: str
    seconds: float
    reason: str

    @property
    def milliseconds(self) -> int:
        """The limit as `poll` takes it."""
        return int(self.seconds * 1000)


LOOK_AROUND = Deadline(
    "look around",
    5.0,
    "how long one wait lasts before the waiting side looks again at whether the other side still lives; events end it "
    "earlier, so it costs nothing",
)
FINISH_SAMPLE = Deadline(
    "finish sample",
    1.0,
    "how long a worker may go on with the sample it is in once it was asked to stop; the rest of the two seconds that "
    "stopping may take is for signals",
)
OBEY_TERM = Deadline("obey SIGTERM", 0.3, "how long after SIGTERM before SIGKILL; libraries may catch SIGTERM")
OBEY_KILL = Deadline(
    "obey SIGKILL",
    0.5,
    "how long the kernel may take to end a killed process; longer means state D, left to the kernel",
)
SERVER_START = Deadline("fork server start", 120.0, "importing torch from a cold network file system can take a minute")
SERVER_REPLY = Deadline(
    "fork server reply", 120.0, "forking takes milliseconds, but the server may be importing the dataset's libraries"
)
SERVER_LOCK = Deadline("fork server lock", 240.0, "another thread may be starting the server and its workers")
HAND_OVER = Deadline(
    "hand over", 60.0, "how long one message may take through a full channel before the other side counts as gone"
)
TAKE_STACK = Deadline(
    "take stack", 0.5, "how long a worker may take to write its stack; the handler is C code and needs microseconds"
)
GLANCE = Deadline("glance", 0.1, "how long a profile waits for a worker's stack; one that comes later is not counted")
LOOK_AGAIN = Deadline(
    "look again",
    1.0,
    "how often the parent looks at workers that owe it a batch while it waits: for samples over their time, for "
    "processes that somebody suspended",
)
NOTICE_PAUSE = Deadline(
    "notice pause",
    3.0,
    "a gap between two looks longer than this means that the parent itself was suspended, and the workers perhaps with it",
)
RETRY_FIRST = Deadline("first retry", 0.05, "before a failed sample is tried again; doubled each time")
RETRY_MOST = Deadline(
    "longest retry", 5.0, "the longest pause between two tries; a file server needs seconds to come back"
)
PROBE_COLLATE = Deadline(
    "probe collate",
    5.0,
    "how long a failed collate function may be tried on parts of its batch to find who is to blame",
)
SETTLE = Deadline(
    "settle",
    5.0,
    "how long a trial's consumer waits for its workers to have made all they may make ahead",
)
ASK_AGAIN = Deadline(
    "ask again",
    2.0,
    "how often a captured program looks whether the doctor that holds it still lives",
)
WATCH_TRIAL = Deadline("watch trial", 0.05, "how often a trial is looked at; its end is noticed at once")
LOOK_AT_LINES = Deadline(
    "look at lines", 0.005, "how often a trial without workers is looked at to see which line it is at"
)
LET_GO = Deadline("let go", 5.0, "how long a program may take to clean up after it was let go")
HOLD_END = Deadline(
    "hold end", 300.0, "how long a watched program waits at its end for the trials that need its servers and files"
)
FOLLOW = Deadline("follow", 0.1, "how often a watched program is looked at; its end is noticed at once")
EXIT = Deadline(
    "exit", 6.0, "how long a watched program may take from its last line to its end before that counts as frozen"
)
GATHER = Deadline("gather facts", 20.0, "pickling a large dataset to see whether it can be takes seconds")
START_FRESH = Deadline("start fresh", 60.0, "a new interpreter imports torch and the dataset's libraries")
SPY = Deadline("spy", 3.0, "how long one look at another process's stacks may take; it needs milliseconds")
REBUILD = Deadline(
    "rebuild", 600.0, "millions of objects take seconds to be rebuilt in a template, a slow disk minutes to import from"
)
TEMPLATE_IDLE = Deadline("template idle", 600.0, "a template without workers ends after this, and its memory with it")
ASK_GIT = Deadline("ask git", 10.0, "how long git may take to say whether a file is committed, before a backup is made")
THEIR_FILE = Deadline(
    "read a file of another user", 5.0, "a source file on a network disk that does not answer is left out"
)

COPY_ENDS = Deadline(
    "copies end",
    20.0,
    "how long a loader that is closed waits for copies to the device that still read its memory; each takes milliseconds, but the "
    "device may be busy with a long kernel",
)
NODE_COPY = Deadline(
    "node copy",
    120.0,
    "how long another process of the same node may take to copy the dataset before we make a copy of our own",
)
NAME_TAKEN = Deadline(
    "name taken",
    1.0,
    "how long a name may be taken before the process that has it shows that it belongs to this user",
)
NODE_PULSE = Deadline(
    "node pulse",
    0.5,
    "how long an agent waits for news before it answers with what its workers do; it is how the parent knows them",
)
NODE_SILENT = Deadline(
    "node silent",
    30.0,
    "an agent that does not answer for so long counts as lost; importing torch on a cold node counts as an answer",
)
NODE_START = Deadline(
    "node start",
    300.0,
    "how long an actor may take to start: Ray may install a runtime environment, and torch may come from a network disk",
)
ASK_NODE = Deadline("ask node", 3.0, "how long an agent may take to tell a worker's stack")
CLOSE_NODE = Deadline("close node", 2.0, "how long an agent may take to end its workers before its actor is killed")
PLACE_AGAIN = Deadline("place again", 1.0, "how often the cluster is asked for room while workers wait for it")
BALANCE = Deadline("balance", 10.0, "how often the cluster is asked for more room while workers share processors")
ALL = (
    COPY_ENDS,
    ASK_GIT,
    NODE_COPY,
    NAME_TAKEN,
    NODE_PULSE,
    NODE_SILENT,
    NODE_START,
    ASK_NODE,
    CLOSE_NODE,
    PLACE_AGAIN,
    BALANCE,
    LOOK_AROUND,
    FINISH_SAMPLE,
    OBEY_TERM,
    OBEY_KILL,
    SERVER_START,
    SERVER_REPLY,
    SERVER_LOCK,
    HAND_OVER,
    TAKE_STACK,
    GLANCE,
    LOOK_AGAIN,
    NOTICE_PAUSE,
    RETRY_FIRST,
    RETRY_MOST,
    PROBE_COLLATE,
    SETTLE,
    ASK_AGAIN,
    WATCH_TRIAL,
    LOOK_AT_LINES,
    LET_GO,
    HOLD_END,
    FOLLOW,
    EXIT,
    GATHER,
    START_FRESH,
    SPY,
    REBUILD,
    TEMPLATE_IDLE,
    THEIR_FILE,
)
