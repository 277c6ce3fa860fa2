"""What needs tools or a Docker engine runs by its own make target, which names it in CALOPD_TEST_DEPLOY."""

import os

WANTED = {
    "tools": ["test_planted.py"],
    "engine": ["test_rendezvous.py", "test_stack.py"],
    "cluster": ["test_control_plane.py"],
}
collect_ignore = [file for name in WANTED if os.environ.get("CALOPD_TEST_DEPLOY") != name for file in WANTED[name]]
