"""Assemble the model directory.

python export.py --weights RUN/weights-0.safetensors,RUN/weights-1.safetensors --tok TOK --out carousel-tiny
"""

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from chatfmt import TEMPLATE
from network.config import CONFIG, EOT


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True, help="files of train.py, separated by commas")
    parser.add_argument("--tok", required=True, type=Path, help="folder of build_tokenizer.py")
    parser.add_argument("--out", required=True, type=Path)
    a = parser.parse_args()
    tensors = {}
    for file in a.weights.split(","):
        tensors |= load_file(file)
    a.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, a.out / "model.safetensors", metadata={"format": "pt"})
    generation = {"eos_token_id": [EOT + 2, EOT], "pad_token_id": EOT, "do_sample": False}
    (a.out / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (a.out / "generation_config.json").write_text(json.dumps(generation, indent=2))
    for source in (a.tok / "tokenizer.json", a.tok / "tokenizer_config.json", TEMPLATE):
        shutil.copy(source, a.out)
    parameters = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    size = (a.out / "model.safetensors").stat().st_size / 2**20
    print(f"{len(tensors)} tensors, {parameters} parameters, {size:.1f} MiB")


if __name__ == "__main__":
    main()
