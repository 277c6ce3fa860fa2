"""Build and load a module with Triton's own code, as it does for its launchers: `python -m tests.gpu.compiled_code`."""

import json
from importlib import import_module

SOURCE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "launcher", 0, -1, 0};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&definition); }
"""


def main() -> None:
    triton = import_module("triton.runtime.build")  # a package of this environment only
    try:
        loaded = f"loaded {triton.compile_module_from_src(SOURCE, 'launcher').__name__}"
    except ImportError as error:
        loaded = str(error)
    print(json.dumps(loaded))


if __name__ == "__main__":
    main()
