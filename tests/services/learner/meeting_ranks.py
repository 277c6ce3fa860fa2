"""A program for the launcher: ranks that meet, add up a number and then wait until a file is removed."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from calopd.config.sections import LearnerSection
from services.learner.ranks import Ranks


def main(folder: Path) -> None:
    ranks = Ranks(LearnerSection())
    total = torch.ones(1)
    dist.all_reduce(total)
    assert ranks.gather(ranks.rank) == list(range(ranks.size))
    (folder / f"{ranks.rank}.txt").write_text(str(int(total)))
    while (folder / "stay").exists() and os.getppid() != 1:
        time.sleep(0.02)
    ranks.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
