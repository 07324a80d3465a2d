"""The signals by which ``swell chaos`` strikes a worker from inside, where that was asked for."""

STRIKE_SIGNALS = {
    "stuck": "SIGVTALRM",  # sleeps for ever, in a system call
    "spin": "SIGPROF",  # loops for ever, in Python
    "clock": "SIGXFSZ",  # its clock jumps by a day, to and fro
    "exception": "SIGWINCH",  # raises an exception at its next point: a pass, an exchange, a commit, a save
    "oom": "SIGURG",  # the same with torch's out-of-memory error
}
