"""python -m services.teacher_scorer --config CONFIG"""

from calopd.local.entry_point import guarded, service_main
from calopd.models.devices import let_blocks_grow


def main() -> None:
    config = service_main("teacher_scorer", __doc__)
    if config.teacher.engine == "torch":
        let_blocks_grow()

    import asyncio

    from services.teacher_scorer.server import serve

    asyncio.run(serve(config))


if __name__ == "__main__":
    guarded(main)
