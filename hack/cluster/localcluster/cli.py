"""Command line of `hack/cluster/cluster`."""

import argparse
import json
import os
import sys
from pathlib import Path

from . import build, existing, images, lifecycle, remains, requirements, status
from .layout import ClusterError, Layout
from .progress import note, step


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when it went well, 1 with a message when not, 2 for a wrong command line."""
    options = _parser().parse_args(arguments)
    try:
        layout = Layout.from_environment(options.name)
        return options.run(layout, options) or 0
    except ClusterError as problem:
        note(f"cluster: {problem}")
        return 1
    except KeyboardInterrupt:
        note("interrupted; `cluster up` or `cluster down` goes on from here")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster", description="A real one-node Kubernetes with an S3 server on this machine."
    )
    default = os.environ.get("SPECULATOR_CLUSTER", "cluster")
    parser.add_argument("--name", default=default, help="folder of the cluster under the cache (default: %(default)s)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser(
        "build", help="build the programs whose pins changed (a quarter of an hour from nothing on 2 cores)"
    )
    command.add_argument("modules", nargs="*", help="only these modules of hack/cluster/tools")
    command.set_defaults(run=_build)

    commands.add_parser("up", help="bring the cluster up; nothing when it is up").set_defaults(run=_up)

    command = commands.add_parser("down", help="end it, leaving images, programs and S3 data")
    command.add_argument("--purge", action="store_true", help="remove images and S3 data as well")
    command.set_defaults(run=_down)

    command = commands.add_parser(
        "images", help="build the project's images where their sources changed; prints their names"
    )
    command.add_argument("images", nargs="*", choices=[[], *images.IMAGES], help="only these (default: all)")
    command.set_defaults(run=_images)

    command = commands.add_parser("image", help="build any Dockerfile into the cluster")
    command.add_argument("reference", help="name and tag of the image")
    command.add_argument("dockerfile", type=Path)
    command.add_argument("--context", type=Path, help="build context (default: the Dockerfile's folder)")
    command.add_argument("--build-arg", action="append", default=[], metavar="KEY=VALUE")
    command.set_defaults(run=_image)

    commands.add_parser("status", help="what runs, where, and whether the node is Ready").set_defaults(run=_status)
    commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig").set_defaults(
        run=_kubeconfig
    )
    commands.add_parser("env", help="print shell exports: KUBECONFIG, PATH, S3 endpoint and keys").set_defaults(
        run=_env
    )
    commands.add_parser("leftovers", help="list what of the cluster is on this machine").set_defaults(run=_leftovers)
    return parser


def _build(layout: Layout, options: argparse.Namespace) -> None:
    requirements.ensure(layout, packages=False)
    build.build(layout, options.modules)


def _up(layout: Layout, options: argparse.Namespace) -> None:
    if existing.wanted():
        note("CLUSTER=existing: the current kube context is used, nothing is brought up")
        return
    lifecycle.up(layout)
    print(f"export KUBECONFIG={layout.kubeconfig}")


def _down(layout: Layout, options: argparse.Namespace) -> None:
    lifecycle.down(layout, purge=options.purge)


def _images(layout: Layout, options: argparse.Namespace) -> None:
    names = options.images or images.IMAGES
    built = existing.build_and_push(layout.repo, names) if existing.wanted() else images.build_all(layout, names)
    print(json.dumps(built, indent=2))


def _image(layout: Layout, options: argparse.Namespace) -> None:
    dockerfile = options.dockerfile / "Dockerfile" if options.dockerfile.is_dir() else options.dockerfile
    if not dockerfile.is_file():
        raise ClusterError(f"there is no file {dockerfile}")
    arguments = dict(item.partition("=")[::2] for item in options.build_arg)
    with lifecycle.locked(layout, "images-lock"), step(f"image {options.reference}"):
        images.build(layout, [options.reference], dockerfile, options.context or dockerfile.parent, arguments)


def _status(layout: Layout, options: argparse.Namespace) -> int:
    sys.stdout.write(status.table(layout))
    return 0 if lifecycle.is_up(layout) else 1


def _kubeconfig(layout: Layout, options: argparse.Namespace) -> None:
    print(layout.kubeconfig)


def _env(layout: Layout, options: argparse.Namespace) -> None:
    sys.stdout.write(status.exports(layout))


def _leftovers(layout: Layout, options: argparse.Namespace) -> int:
    found = remains.leftovers(layout)
    print("\n".join(found) or "nothing")
    return 1 if found else 0
