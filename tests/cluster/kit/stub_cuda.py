#!/usr/bin/env python3
"""Make a CUDA build of torch importable on a machine without CUDA: stub_cuda.py SITE_PACKAGES

PyPI's torch for Linux needs 4 to 5 GB of CUDA libraries only to be imported. For images of the local cluster, which has
no GPU, gcc builds a library in the place of each: every function answers 100 ("no device"), so that
torch.cuda.is_available() is False and the CPU kernels work. The GPU code inside torch's own libraries becomes zeros,
which compress to nothing.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA = re.compile(
    r"^lib(cudart|curand|cupti|cublas|cublasLt|cudnn|cufft|cufile|cusparse|cusparseLt|cusolver|nccl|nvrtc|nvshmem_host|nvJitLink)\.so"
)
# A symbol without a version names its library by its prefix.
PREFIXES = ("nccl", "cuFile", "cusparseLt", "nvshmem", "cupti", "cufft", "nvrtc")
OURS = ("libtorch", "libc10", "libshm", "libcaffe2")
ZERO_BLOCK = bytes(1 << 20)

Symbols = dict[str, dict[str, set[str]]]  # library -> version ("" for none) -> names


def readelf(library: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, str(library)], capture_output=True, text=True, check=True).stdout


def needed(library: Path) -> set[str]:
    return {name for name in re.findall(r"NEEDED.*\[(.*?)\]", readelf(library, "-d")) if CUDA.match(name)}


def version_owners(library: Path) -> dict[str, str]:
    """Which library each version name of `library`'s imports belongs to."""
    owners: dict[str, str] = {}
    current = ""
    _, _, section = readelf(library, "-V").rpartition("Version needs section")
    for line in section.splitlines():
        if file := re.search(r"File: (\S+)", line):
            current = file.group(1)
        if name := re.search(r"Name: (\S+)", line):
            owners[name.group(1)] = current
    return owners


def owner_by_prefix(symbol: str, libraries: set[str]) -> str:
    for prefix in PREFIXES:
        if symbol.startswith(prefix):
            stem = f"lib{prefix.lower()}"
            return next((lib for lib in libraries if lib.lower().startswith((stem + ".", stem + "_"))), "")
    return ""


def add_imports(library: Path, libraries: set[str], found: Symbols) -> None:
    owners = version_owners(library)
    for line in readelf(library, "--dyn-syms").splitlines():
        columns = line.split()
        if len(columns) < 8 or columns[6] != "UND":
            continue
        name, _, version = columns[7].partition("@")
        version = version.lstrip("@")
        if version:
            owner = owners.get(version, "")
        else:
            stem = next((p for p in PREFIXES if name.startswith(p)), None)
            wanted = f"lib{stem.lower()}" if stem else ""
            owner = next(
                (lib for lib in libraries if stem and lib.lower().startswith((wanted + ".", wanted + "_"))), ""
            )
        if CUDA.match(owner):
            found[owner][version].add(name)


def source(versions: dict[str, set[str]]) -> str:
    lines = []
    for name in sorted(set().union(*versions.values())):
        if "String" in name or name.endswith("GetErrorName"):
            lines.append(f'const char *{name}(void) {{ return "no CUDA here"; }}')
        elif name.startswith("__cuda"):
            lines.append(f"void *{name}(void) {{ return 0; }}")
        else:
            lines.append(f"long {name}(void) {{ return 100; }}")
    return "\n".join(lines) + "\n"


def build(folder: Path, library: str, versions: dict[str, set[str]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch, "stub.c"), Path(scratch, "versions.map")
        code.write_text(source(versions) if versions else "\n")
        command = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library}"]
        named = {version: names for version, names in versions.items() if version}
        if named:
            script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};\n" for v, n in named.items()))
            command.append(f"-Wl,--version-script,{script}")
        subprocess.run([*command, "-o", str(folder / library), str(code)], check=True)


def zero_gpu_code(library: Path) -> int:
    """Overwrite the section with GPU code by zeros; returns its size in bytes."""
    section = re.search(r"\.nv_fatbin +PROGBITS +\w+ (\w+) (\w+)", readelf(library, "-S"))
    if not section:
        return 0
    offset, size = (int(number, 16) for number in section.groups())
    with library.open("r+b") as file:
        file.seek(offset)
        for start in range(0, size, len(ZERO_BLOCK)):
            file.write(ZERO_BLOCK[: size - start])
    return size


def main() -> None:
    folder = Path(sys.argv[1], "torch", "lib")
    own = sorted(path for path in folder.glob("*.so*") if path.name.startswith(OURS))
    libraries = {name for path in own for name in needed(path)}
    found: Symbols = defaultdict(lambda: defaultdict(set))
    for path in own:
        add_imports(path, libraries, found)
    for library in sorted(libraries):
        build(folder, library, found[library])
    zeros = sum(zero_gpu_code(path) for path in own)
    count = sum(len(names) for versions in found.values() for names in versions.values())
    print(f"{len(libraries)} CUDA libraries with {count} functions stubbed, {zeros / 1e6:.0f} MB of GPU code zeroed")


if __name__ == "__main__":
    main()
