"""`extproc scale`: start and stop servers as the service recommends, by a command of the operator's.

Exit status: 0 ended as told (--once: all done that can be done now), 1 a command or a step failed, 2 mistyped, 4
another one acts on the pool, 5 there is nothing to go by (--once).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated

import typer

from extproc.actuator.advice import NoAdviceError, UnknownPoolError
from extproc.actuator.book import Book, BookError, LockedError
from extproc.actuator.command import Commands
from extproc.actuator.decide import Rules
from extproc.actuator.journal import Journal
from extproc.actuator.service import AwayError
from extproc.actuator.work import Actuator, Result
from extproc.cli._admin import DEFAULT, Admin, CaOption, CertOption, KeyOption, Rights, TokenFileOption
from extproc.cli._fail import fail
from extproc.cli._options import LOG_FORMAT_HELP, LogFormat
from extproc.cli._scale_service import AdminPorts

_ECHO_S = 0.3  # some send a signal to a process and to its group: two so close together are one


class Expired(StrEnum):
    STOP = "stop"
    WAIT = "wait"


class Exit(IntEnum):
    FAILED = 1
    LOCKED = 4
    NO_ADVICE = 5


def scale(
    pool: Annotated[str, typer.Argument(help="The pool whose recommendation is carried out.")],
    exec_: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="CMD",
            help='Your command, called as "CMD start" and "CMD stop HOST:PORT". Its "start" asks for one server and'
            " prints its host:port as the last line, or nothing if discovery finds it.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be done next, and do nothing; beside another one, too.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Do what can be done now, wait for no server, and end: for cron.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")] = 5.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="A command that takes longer is ended, and has failed.")
    ] = 300.0,
    start_timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="A server that does not serve so long after its start has failed: it is drained and stopped. Default:"
            " three times its expected cold start, at least 300.",
        ),
    ] = None,
    max_starting: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="No more than N may be starting at once. Default: any number."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Of a drain. Default: the service's, by what runs there."),
    ] = None,
    expired: Annotated[
        Expired, typer.Option(help="A drain that has not ended by its deadline: stop the server, or wait on.")
    ] = Expired.STOP,
    state: Annotated[
        Path | None,
        typer.Option(
            envvar="STATE_DIRECTORY",
            metavar="DIR",
            help="Where it is kept what is under way, and the lock. Default: ~/.local/state/extproc.",
        ),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help=LOG_FORMAT_HELP)] = LogFormat.TEXT,
    admin: Annotated[
        list[str] | None,
        typer.Option(
            "--admin",
            envvar="EXTPROC_ADMIN",
            help="The running service's admin address. Repeat it for each process in front of the same servers: all are"
            f" told of drains. Default: {DEFAULT}.",
        ),
    ] = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
) -> None:
    """Start and stop servers as the service recommends, one at a time; a server is drained before it is stopped.

    Ctrl-C or SIGTERM: a command that runs is waited for (again: it is ended at once); a drain goes on, and the next
    `extproc scale` takes it up.

    Exit status: 0 ended as told, 1 something failed, 4 another one acts on the pool, 5 (--once) there is nothing to go
    by.
    """
    if (exec_ is None) != dry_run:
        raise typer.BadParameter("give --exec CMD, or --dry-run to see what would be done")
    argv = [] if exec_ is None else _argv(exec_)
    rights = Rights(token_file, ca, cert, key)
    service = AdminPorts([Admin(url, rights) for url in admin or [DEFAULT]])
    _refuse_unknown_pool(service, pool)
    journal = Journal(pool, _line, time.time, as_json=log_format is LogFormat.JSON)
    commands = Commands(argv, timeout, lambda action, line: journal.tell("output", f"{action}: {line}", action=action))
    stop = _Stop(commands)
    book = Book(state if state is not None else _state_folder(), pool)

    def actuator() -> Actuator:
        return Actuator(
            pool,
            service,
            commands,
            book,
            Rules(start_timeout, expired is Expired.STOP, max_starting),
            journal,
            deadline_s=deadline,
            env={"EXTPROC_ADMIN": (admin or [DEFAULT])[0], **rights.environment()},
            stopping=stop.is_set,
        )

    try:
        if dry_run:
            result = _repeat(actuator().would, stop, every, once=once)
        else:
            with book:
                one = actuator()
                under_way = one.left()
                command = shlex.join(argv)
                journal.tell(
                    "begins", f"carries out by: {command}" + (f"; under way: {under_way}" if under_way else "")
                )
                result = _repeat(one.round, stop, every, once=once)
                if not once:
                    left = one.left()
                    journal.tell("ends", "ends" + (f"; {left}" if left else "; nothing is under way"))
    except LockedError as error:
        fail(str(error), Exit.LOCKED, command="scale")
    except BookError as error:
        fail(str(error), Exit.FAILED, command="scale")
    if once and result is not Result.DONE:
        raise typer.Exit(Exit.FAILED if result is Result.FAILED else Exit.NO_ADVICE)


class _Stop:
    """Set by a signal; a second one ends the process at once."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._event = threading.Event()
        self._first_s = 0.0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.is_set = self._event.is_set
        self.wait = self._event.wait

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._event.is_set():
            if time.monotonic() - self._first_s < _ECHO_S:
                return
            self._commands.kill_now()
            os._exit(128 + number)
        self._first_s = time.monotonic()
        self._event.set()


def _repeat(look: Callable[[], Result], stop: _Stop, every_s: float, *, once: bool) -> Result:
    while True:
        result = look()
        if once or stop.wait(every_s):
            return result


def _argv(text: str) -> list[str]:
    """Raises typer.BadParameter for what cannot be run."""
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text}: {error}", param_hint="--exec") from None
    if not argv:
        raise typer.BadParameter("the command is empty", param_hint="--exec")
    if shutil.which(argv[0]) is None:
        there = Path(argv[0]).exists() and "/" in argv[0]
        cure = (
            "it is not executable; chmod +x it" if there else "there is no such command; write its path, as ./fleet.sh"
        )
        raise typer.BadParameter(f"{argv[0]}: {cure}", param_hint="--exec")
    return argv


def _refuse_unknown_pool(service: AdminPorts, pool: str) -> None:
    """A mistyped pool is told at once; a service that is away may come."""
    try:
        service.recommendation(pool)
    except UnknownPoolError as error:
        fail(str(error), Exit.FAILED, command="scale")
    except (NoAdviceError, AwayError):
        pass


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "extproc"


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
