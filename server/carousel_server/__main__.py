"""The command `carousel-server`: serve, drain, inspect, fetch, generate, chat."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

ADMIN_TOKEN = Path("/var/run/carousel/admin/token")
API_KEYS = Path("/var/run/carousel/api-keys")
PEERS = Path("/etc/carousel/peers.json")
OTHERS = {
    "drain": ("carousel_server.drain_cli", "wait until this pod's requests have ended; what preStop runs"),
    "inspect": ("carousel_server.inspect_cli", "check a checkpoint and print its memory plan, without loading it"),
    "fetch": ("carousel_server.fetch_cli", "fill a folder with a model from the Hugging Face Hub"),
    "generate": ("carousel_server.generate_cli", "generate from a prompt, without a server"),
    "chat": ("carousel_server.chat_cli", "chat in the terminal with a server, or with one that is started here"),
}
EPILOG = """exit codes:
  0   clean
  1   a fault inside the server; its log has the cause
  64  InvalidSpec: a flag, variable or configuration file that cannot be honoured
  66  ModelMissing: no model there, or a faulty one
  70  GPUUnhealthy: the device is lost
  71  GPUOutOfMemory: the device ran out of memory after the start
  78  LimitsDoNotFit: the memory plan does not fit the machine"""


class Parser(argparse.ArgumentParser):
    """Ends with 64 on a wrong flag: 2 means nothing to the operator."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise SystemExit(_end(64, f"{message} (see {self.prog} --help)"))


def parser() -> argparse.ArgumentParser:
    """The parser of `serve`; the other commands have their own."""
    from carousel_server.config import add_flags

    found = Parser(
        prog="carousel-server serve",
        description="Serve a chat model: the client API on one port, the admin port on another.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = found.add_argument
    add("--model", default="embedded", help="folder of a checkpoint, or embedded (default: %(default)s)")
    add("--served-name", help="the model's name for clients (default: chat for embedded, else the folder's name)")
    add("--config", type=Path, help="TOML file with [limits] and [engine]; see docs/running.md")
    add("--host", default="0.0.0.0", help="address of both ports (default: %(default)s)")
    add("--port", type=_port, default=8000, help="client port; 0 takes a free one and prints it (default: %(default)s)")
    add("--admin-port", type=_port, default=8001, help="admin port, never for clients (default: %(default)s)")
    add(
        "--api-keys",
        type=Path,
        help=f"directory of API keys: file name = key's name, content = key (default: {API_KEYS} if it exists)",
    )
    add("--admin-token", type=Path, default=ADMIN_TOKEN, help="file of the admin token (default: %(default)s)")
    add("--peers", type=Path, help="peers.json of the operator (default: beside --config)")
    add(
        "--engine",
        choices=("torch", "scripted", "uniform"),
        default="torch",
        help="torch runs the model; scripted and uniform are for tests and say nothing sensible",
    )
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where the model runs; auto takes a GPU if there is one, cuda ends with 70 if there is none "
        "(default: %(default)s)",
    )
    add(
        "--sampling-defaults",
        choices=("greedy", "model"),
        default="greedy",
        help="what a client that names no sampling gets: temperature 0, or generation_config.json's (default: greedy)",
    )
    add("--threads", type=int, help="CPU threads of the engine (default: what the container may use)")
    add("--no-access-log", dest="access_log", action="store_false", help="no line for each request")
    add(
        "--no-environment",
        dest="environment",
        action="store_false",
        help="take no limit and no engine setting from the environment (the operator's pods do)",
    )
    add_flags(found)
    return found


def serve(argv: Sequence[str]) -> int:
    """Parse, plan, run; everything wrong becomes an exit code and one sentence."""
    found = parser()
    options = found.parse_args(list(argv))
    from carousel_server.config import ConfigError, load_config
    from carousel_server.loader import INVALID, Source, StartError
    from carousel_server.server import Setup
    from carousel_server.server import serve as run

    try:
        config = load_config(
            toml=options.config.read_text(encoding="utf-8") if options.config else "",
            environment=os.environ if options.environment else {},
            flags=vars(options),
        )
        setup = Setup(
            source=Source(
                model=options.model,
                engine=options.engine,
                limits=config.limits,
                settings=config.engine,
                device=options.device,
                model_sampling=options.sampling_defaults == "model",
                threads=options.threads,
            ),
            served_name=options.served_name or _served_name(options.model),
            host=options.host,
            port=options.port,
            admin_port=options.admin_port,
            ordinal=ordinal_of(os.environ.get("CAROUSEL_POD_NAME", "")),
            generation=config.generation,
            api_keys=_api_keys(options.api_keys),
            admin_token=options.admin_token,
            peers=options.peers or (options.config.parent / "peers.json" if options.config else PEERS),
            access_log=options.access_log,
            version=_version(),
        )
        code = run(setup)
    except (ConfigError, OSError) as error:
        return _end(INVALID, str(error))
    except StartError as error:
        return _end(error.code, str(error))
    # Nothing is left to take down in order, and trying would abort with a code of its own: on a lost device, and where
    # a thread of the engine is in the driver or in torch, from which the interpreter's end does not let it return.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ordinal_of(pod: str) -> int:
    """The number of a StatefulSet's pod from its name; 0 outside Kubernetes."""
    number = pod.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else ""
    if command == "serve":
        return serve(arguments[1:])
    if command in OTHERS:
        run = importlib.import_module(OTHERS[command][0]).main
        return int(run(arguments[1:]) or 0)
    if command == "--version":
        print(_version())
        return 0
    helped = command in ("-h", "--help", "help")
    out = sys.stdout if helped else sys.stderr
    print("usage: carousel-server COMMAND [OPTION ...]\n", file=out)
    for name, text in (("serve", "serve a chat model over HTTP"), *((k, v[1]) for k, v in OTHERS.items())):
        print(f"  {name:<10}{text}", file=out)
    print("\ncarousel-server COMMAND --help says more of each.", file=out)
    if helped:
        return 0
    return _end(64, f"{command!r} is no command" if command else "no command was given")


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is no port: 0 to 65535")
    return value


def _api_keys(given: Path | None) -> Path | None:
    """A directory that was asked for must be there; the usual one is used if it is."""
    if given is None:
        return API_KEYS if API_KEYS.is_dir() else None
    if not given.is_dir():
        raise NotADirectoryError(f"--api-keys {given} is no directory; make it, with one file for each key")
    return given


def _served_name(model: str) -> str:
    return "chat" if model == "embedded" else Path(model).resolve().name


def _version() -> str:
    try:
        return version("carousel")
    except PackageNotFoundError:
        return "0"


def _end(code: int, message: str) -> int:
    print(f"carousel-server: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
