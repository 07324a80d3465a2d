"""The signals by which ``swell chaos`` makes a worker get stuck or lose its clock, where that was asked for."""

STRIKE_SIGNALS = {
    "stuck": "SIGVTALRM",  # sleeps for ever, in a system call
    "spin": "SIGPROF",  # loops for ever, in Python
    "clock": "SIGXFSZ",  # its clock jumps by a day, to and fro
}
