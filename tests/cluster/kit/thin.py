#!/usr/bin/env python3
"""Cut an image that buildah writes down to what its base does not have.

`prepare` before the push keeps buildah from writing the base's layers; `cut` after it makes an archive whose manifest
names all layers and which holds only the new ones. A node that has the base takes it in a second, where the whole image
is 1 GB.
"""

import argparse
import json
from pathlib import Path

from oci import Archive, Document, blob_name, new_archive


def read(layout: Path, digest: str) -> Document:
    document: Document = json.loads((layout / blob_name(digest)).read_bytes())
    return document


def prepare(layout: Path, base_path: Path) -> None:
    """Where a file with a layer's digest stands already, buildah does not write that layer again."""
    (layout / "blobs" / "sha256").mkdir(parents=True)
    for diff_id in Archive(base_path).diff_ids:
        (layout / blob_name(diff_id)).touch()


def cut(layout: Path, base_path: Path, tag: str, out_path: Path) -> None:
    base = Archive(base_path)
    index = json.loads((layout / "index.json").read_text())
    manifest = read(layout, index["manifests"][0]["digest"])
    config = read(layout, manifest["config"]["digest"])
    known = len(base.diff_ids)
    if config["rootfs"]["diff_ids"][:known] != base.diff_ids:
        raise SystemExit(f"thin.py: {tag} was not built from {base_path}: its first layers differ")
    new = manifest["layers"][known:]
    with new_archive(out_path) as out:
        for layer in new:
            with (layout / blob_name(layer["digest"])).open("rb") as blob:
                out.blob(layer, blob)
        out.image(tag, config, base.layers + new)
    print(
        f"{tag}: {known} layers of the base, {len(new)} new ones of {sum(layer['size'] for layer in new) / 1e6:.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("prepare", "cut"):
        arguments = verbs.add_parser(verb)
        arguments.add_argument("layout", type=Path, help="the folder that buildah writes to")
        arguments.add_argument("base", type=Path, help="the archive of the image it was built from")
        if verb == "cut":
            arguments.add_argument("tag")
            arguments.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.verb == "prepare":
        prepare(given.layout, given.base)
    else:
        cut(given.layout, given.base, given.tag, given.out)


if __name__ == "__main__":
    main()
