"""The end of a rollout that is asked to stop."""

import asyncio
import signal
import subprocess
import sys

import pytest

from tests.services.rollout.fake_engines import BATCH, FakeReader, FakeSampler, fake_worker, tickets


@pytest.mark.parametrize("turns", range(6))
def test_a_full_worker_stops_also_in_the_moment_in_which_it_has_room(queue, tmp_path, turns):
    """`asyncio.wait_for` of Python 3.11 swallows a cancellation then: the worker worked on, without its server."""
    engine = FakeSampler()
    engine.hangs.set()
    worker = fake_worker(queue, engine, FakeReader(tmp_path), max_in_flight=1)
    queue.open_batch(BATCH, tickets(1))

    async def watch() -> None:
        working = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while not engine.together:
                await asyncio.sleep(0.01)
        worker._room.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        working.cancel()
        done, _ = await asyncio.wait((working,), timeout=20)
        assert done, "it works on"

    asyncio.run(watch())
    engine.goes_on.set()
    worker.sampler.stop()


def test_a_worker_that_does_not_end_does_not_keep_its_process():
    code = (
        "import asyncio, logging, uvicorn\n"
        "from services.rollout import server as rollout\n"
        "rollout.LONGEST_STOP_SECONDS = 0.2\n"
        "async def work():\n"
        "    while not server.started: await asyncio.sleep(0.01)\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        try: await asyncio.Event().wait()\n"
        "        except asyncio.CancelledError: pass\n"
        "async def app(scope, receive, send): ...\n"
        "server = uvicorn.Server(uvicorn.Config(app, host='127.0.0.1', port=0, lifespan='off', log_config=None))\n"
        "asyncio.run(rollout.run_until_stopped(work(), server))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(timeout=120) == -signal.SIGTERM


def test_a_process_that_is_terminated_ends_after_its_worker():
    """uvicorn handles the signal, too."""
    code = (
        "import asyncio, logging, uvicorn\n"
        "from services.rollout.server import run_until_stopped\n"
        "async def work():\n"
        "    while not server.started: await asyncio.sleep(0.01)\n"
        "    print('ready', flush=True)\n"
        "    try: await asyncio.Event().wait()\n"
        "    finally:\n"
        "        await asyncio.sleep(0.5); print('given back', flush=True)\n"
        "async def app(scope, receive, send): ...\n"
        "server = uvicorn.Server(uvicorn.Config(app, host='127.0.0.1', port=0, lifespan='off', log_config=None))\n"
        "asyncio.run(run_until_stopped(work(), server))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=120)[0] == "given back\n"
    assert process.returncode == -signal.SIGTERM
