"""What every test of the server shares."""

import importlib.util

if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
    collect_ignore_glob = ["test_*"]
else:
    from conftest_of_serving import client, engine, model, photographs, slow

    __all__ = ["client", "engine", "model", "photographs", "slow"]
