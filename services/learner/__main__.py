"""python -m services.learner.launch --nproc-per-node N -m services.learner --config CONFIG"""

import os

from calopd.core.errors import ConfigError
from calopd.local.entry_point import guarded, service_main
from calopd.models.devices import let_blocks_grow


def main() -> None:
    let_blocks_grow()
    config = service_main("learner", __doc__)
    if "WORLD_SIZE" not in os.environ and config.learner.ranks > 1:
        launcher = f"python -m services.learner.launch --nproc-per-node {config.learner.ranks}"
        raise ConfigError(f"learner.ranks = {config.learner.ranks} needs a launcher: {launcher} -m services.learner …")

    from calopd.core.heartbeat import Heartbeat
    from calopd.local.stalled_process import exit_when_stalled
    from calopd.models.devices import set_threads
    from calopd.tracking.trace import start_trace
    from services.learner.loop import TrainingLoop
    from services.learner.peer_loss import exit_if_peer_lost
    from services.learner.ranks import Ranks

    set_threads(config.learner.threads)
    with exit_if_peer_lost():
        ranks = Ranks(config.learner)
        if config.run.trace:
            start_trace(config.run_dir, f"learner-rank-{ranks.rank}")
        heartbeat = Heartbeat(config.run.stall_seconds)
        exit_when_stalled(heartbeat)
        TrainingLoop(config, ranks, heartbeat).run()
    ranks.close()


if __name__ == "__main__":
    guarded(main)
