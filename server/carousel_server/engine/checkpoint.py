"""A model folder: its files mapped, and every tensor checked by name, shape and type before anything runs."""

import json
from pathlib import Path

from torch import Tensor

from carousel_server.engine.config import CheckpointError, ModelConfig, read_config
from carousel_server.engine.layout import (
    TEXT,
    Expected,
    Layout,
    detect,
    expected,
    hash_multipliers,
    hash_sizes,
    ignored,
)
from carousel_server.engine.mapped import MappedFile

INDEX = "model.safetensors.index.json"
SHOWN = 4  # names in an error that lists many


class Checkpoint:
    """A whole, consistent checkpoint. Tensors are views of mapped files."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError; nothing stays mapped then."""
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder; give the folder of a model or `embedded`")
        self.folder = folder
        self.config: ModelConfig = read_config(folder)
        self._where = self._files()
        self.layout: Layout = detect(self.config, self._where)
        self.expected: dict[str, Expected] = expected(self.config, self.layout)
        self._check_names()
        self._check_tensors()
        self._check_hash()

    def tensor(self, name: str) -> Tensor:
        """The tensor as the file has it, mapped."""
        return self._where[name].tensor(name)

    def sizes(self) -> dict[str, int]:
        """Bytes in the files for each part of the model, in the order of the layout."""
        out: dict[str, int] = {}
        for name, one in self.expected.items():
            out[one.part] = out.get(one.part, 0) + self._where[name].entries[name].nbytes
        return out

    def parameters(self) -> int:
        """Values of the text model, with the draft head; block scales are not counted."""
        return sum(
            self.tensor(name).numel()
            for name, one in self.expected.items()
            if one.dtypes != ("I64",) and "weight_scale" not in name
        )

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types that occur, as the files spell them."""
        return tuple(sorted({self._where[name].entries[name].dtype for name in self.expected}))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return tuple(sorted({file.path for file in self._where.values()}))

    def _files(self) -> dict[str, MappedFile]:
        """name -> file, through the index if there is one."""
        index = self.folder / INDEX
        if not index.exists():
            paths = sorted(self.folder.glob("*.safetensors"))
            if not paths:
                raise CheckpointError(f"{self.folder}: no *.safetensors file; is the download complete?")
            return self._collect([MappedFile(path) for path in paths])
        try:
            listed = json.loads(index.read_text("utf-8"))["weight_map"]
            names = sorted(set(listed.values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index}: not a safetensors index: {error!r}") from None
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise CheckpointError(f"{index}: {name!r} is not a file name beside the index")
            if not (self.folder / name).exists():
                raise CheckpointError(f"{self.folder / name}: named by {INDEX} but missing; is the download complete?")
        where = self._collect([MappedFile(self.folder / name) for name in names])
        for tensor, name in listed.items():
            if tensor not in where or where[tensor].path.name != name:
                found = where[tensor].path.name if tensor in where else "nowhere"
                raise CheckpointError(f"{index}: {tensor}: expected in {name}, found {found}")
        return where

    def _collect(self, files: list[MappedFile]) -> dict[str, MappedFile]:
        where: dict[str, MappedFile] = {}
        for file in files:
            for name in file.entries:
                if name in where:
                    raise CheckpointError(f"{file.path}: {name}: also in {where[name].path.name}; one must go")
                where[name] = file
        return where

    def _check_names(self) -> None:
        missing = [name for name in self.expected if name not in self._where]
        if missing:
            where = ", ".join(path.name for path in self.files)
            raise CheckpointError(
                f"{self.folder}: {_list(missing)}: missing ({len(missing)} of {len(self.expected)} tensors; {where})"
            )
        surplus = [n for n in self._where if n not in self.expected and not ignored(n, self.config)]
        if surplus:
            raise CheckpointError(
                f"{self._where[surplus[0]].path}: {_list(surplus)}: not part of this model "
                f"({len(surplus)} surplus tensors); config.json and the files do not belong together"
            )

    def _check_tensors(self) -> None:
        for name, one in self.expected.items():
            file = self._where[name]
            entry = file.entries[name]
            if entry.shape != one.shape:
                raise CheckpointError(
                    f"{file.path}: {name}: expected shape {list(one.shape)} from config.json, found {list(entry.shape)}"
                )
            if entry.dtype not in one.dtypes:
                raise CheckpointError(
                    f"{file.path}: {name}: expected type {' or '.join(one.dtypes)}, found {entry.dtype}"
                )

    def _check_hash(self) -> None:
        """The stored hash constants must be those that the config's seed and base give."""
        for position, layer in enumerate(self.config.ngram_layers):
            sizes = hash_sizes(self.config, position)
            offsets = tuple(sum(sizes[:i]) for i in range(len(sizes)))
            for leaf, value in (
                ("layer_multipliers", hash_multipliers(self.config, position)),
                ("ngram_heads_vocab_sizes", sizes),
                ("ngram_heads_offsets", offsets),
            ):
                name = f"{TEXT}layers.{layer}.ple.ple_embedding.{leaf}"
                found = tuple(self.tensor(name).tolist())
                if found != value:
                    raise CheckpointError(
                        f"{self._where[name].path}: {name}: expected {list(value)} from config.json's seed and base, "
                        f"found {list(found)}"
                    )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
