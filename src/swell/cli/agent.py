"""``swell agent``: offer this machine to a run."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from swell.cli.command import Command
from swell.errors import ConfigError


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("address", metavar="ADDRESS", help="where the run listens: the --listen of its swell run")
    add("--slots", type=int, metavar="N", help="workers on this machine at most (default: one per device or core)")
    add("--token-file", metavar="FILE", help="the run's token (default: $SWELL_TOKEN)")
    add("--folder", metavar="DIR", help="where the script is on this machine (default: the same path as there)")
    add("--run-dir", metavar="DIR", help="the run's folder on this machine (default: the same path as there)")
    add(
        "--machine",
        default="",
        metavar="NAME",
        help="agents with the same name are on one machine (default: each alone)",
    )
    add(
        "--leave-with-stdin",
        action="store_true",
        help="leave the run when the standard input ends; what it says is the reason",
    )
    add(
        "--wait",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds to wait for a run that does not answer, at the start or again (default: 600)",
    )


def _run(args: Namespace) -> int:
    from swell.checkpoint.state_folder import DiskStates
    from swell.runtime.environment import count_places
    from swell.supervisor.agent import Agent, AgentOptions
    from swell.supervisor.agent_states import AgentStates
    from swell.supervisor.descriptors import raise_descriptor_limit
    from swell.supervisor.interfaces import parse_address
    from swell.supervisor.run_token import find_token
    from swell.supervisor.secure_channel import RunIdentity

    slots = count_places() if args.slots is None else args.slots
    if slots < 1:
        raise ConfigError(f"--slots is {slots}; expected 1 or more.")
    if not args.wait >= 0:
        raise ConfigError(f"--wait is {args.wait:g}; expected seconds, 0 or more.")
    host, port = parse_address(args.address)
    options = AgentOptions(
        host=host,
        port=port,
        slots=slots,
        folder=None if args.folder is None else Path(args.folder).resolve(),
        run_dir=None if args.run_dir is None else Path(args.run_dir).resolve(),
        wait_s=args.wait,
        machine=args.machine,
        leash=sys.stdin.fileno() if args.leave_with_stdin else None,
    )
    token = find_token(args.token_file)
    raise_descriptor_limit()
    states = AgentStates(DiskStates, token)
    return Agent(options, RunIdentity(token), write=lambda line: print(line, flush=True), states=states).run()


COMMAND = Command(
    summary="offer this machine to a run that listens",
    description=(
        "Start and watch workers on this machine for a run that was started elsewhere with swell run --listen. The run "
        "grows by the slots of this machine, and goes on without them when it leaves. SIGTERM, SIGINT, SIGUSR1/2 or "
        "SIGHUP make it leave: its workers go after a step. When the run is lost, the workers save and stop, and the "
        "agent waits for the run to come back.\n"
        "The status is the run's own when the run has ended, 143 when this machine has left or the run did not come "
        "back, 2 if the request is invalid."
    ),
    example="swell agent 10.0.0.1:29777 --token-file token",
    options=_options,
    run=_run,
)
