"""Download the models of a run before its services start, each one once.

With --wait, wait until another process has downloaded them: many pods share one volume, and one of them downloads.
"""

import argparse
import os
import time
from pathlib import Path

HELP = "download the models of a run before its services start"
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
"""The files that a model is loaded from: no pickles, no code."""

POLL_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="the run's TOML")
    parser.add_argument("--wait", action="store_true", help="wait until the models exist instead of downloading them")


def marker(model: str) -> Path:
    """Written when all files of a model exist: the snapshot folder exists from the first file on."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return home / "fetched" / model.replace("/", "--")


def run(arguments: argparse.Namespace) -> None:
    from huggingface_hub import snapshot_download

    from calopd.config import load_config
    from calopd.core.errors import ConfigError
    from calopd.models.model_files import check_exists, is_local

    config = load_config(arguments.config)
    for key, model in (("student.path", config.student.path), ("teacher.path", config.teacher.path)):
        if is_local(model):
            check_exists(key, model)
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
