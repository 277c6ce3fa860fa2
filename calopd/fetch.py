"""`python -m calopd.fetch --config CONFIG`: download a run's models before its services start, each once."""

import argparse
from pathlib import Path

from calopd.entry import guarded

FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
"""What a model is loaded from: no pickles, no code."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m calopd.fetch", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the run's TOML")
    arguments = parser.parse_args()

    from huggingface_hub import snapshot_download

    from calopd.config import load_config
    from calopd.errors import ConfigError
    from calopd.preflight import is_local

    config = load_config(arguments.config)
    for key, model in (("student.path", config.student.path), ("teacher.path", config.teacher.path)):
        if is_local(model):
            print(f"{key} = {model}: a folder, nothing to download", flush=True)
            continue
        try:
            folder = snapshot_download(model, allow_patterns=FILES)
        except OSError as error:
            raise ConfigError(f"{key} = {model!r} cannot be downloaded: {str(error).splitlines()[0]}") from None
        print(f"{key} = {model}: {folder}", flush=True)


if __name__ == "__main__":
    guarded(main)
