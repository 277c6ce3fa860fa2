"""`python -m calopd.cli.download --config CONFIG`: download a run's models before its services start, each once.

With --wait, wait until somebody else has: many pods share one volume, and one of them downloads.
"""

import argparse
import os
import time
from pathlib import Path

from calopd.local.entry_point import guarded

FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
"""What a model is loaded from: no pickles, no code."""

POLL_SECONDS = 5.0


def marker(model: str) -> Path:
    """Written when all files of a model are there: a snapshot folder exists from the first file on."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return home / "fetched" / model.replace("/", "--")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m calopd.cli.download", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the run's TOML")
    parser.add_argument("--wait", action="store_true", help="wait until they are there instead of downloading")
    arguments = parser.parse_args()

    from huggingface_hub import snapshot_download

    from calopd.config import load_config
    from calopd.config.preflight import is_local
    from calopd.core.errors import ConfigError

    config = load_config(arguments.config)
    for key, model in (("student.path", config.student.path), ("teacher.path", config.teacher.path)):
        if is_local(model):
            print(f"{key} = {model}: a folder, nothing to download", flush=True)
            continue
        if arguments.wait:
            print(f"{key} = {model}: waiting until it is downloaded", flush=True)
            while not marker(model).exists():
                time.sleep(POLL_SECONDS)
            continue
        try:
            folder = snapshot_download(model, allow_patterns=FILES)
        except OSError as error:
            raise ConfigError(f"{key} = {model!r} cannot be downloaded: {str(error).splitlines()[0]}") from None
        marker(model).parent.mkdir(parents=True, exist_ok=True)
        marker(model).touch()
        print(f"{key} = {model}: {folder}", flush=True)


if __name__ == "__main__":
    guarded(main)
