"""python -m services.teacher_scorer --config CONFIG"""

from calopd.local.entry_point import guarded, service_main


def main() -> None:
    config = service_main("teacher_scorer", __doc__)

    import asyncio

    from services.teacher_scorer.server import serve

    asyncio.run(serve(config))


if __name__ == "__main__":
    guarded(main)
