"""Python runs this at the start of every process of a recorded command: the probes go in when torch is imported.

The folder of this file is first on PYTHONPATH, and ORACLE_RECORD holds the options as JSON. A process that never
imports torch is left as it is. Only the standard library.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys

VARIABLE = "ORACLE_RECORD"
HERE = os.path.dirname(os.path.abspath(__file__))


class AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as the others do, and calls `then` when its import is done."""

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        """The spec of torch with a loader that goes on with `then`; None for everything else."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader, then = spec.loader, self.then

        class Loader(importlib.abc.Loader):
            def create_module(self, spec):
                return loader.create_module(spec)

            def exec_module(self, module):
                loader.exec_module(module)
                then()

            def __getattr__(self, attribute):
                return getattr(loader, attribute)

        spec.loader = Loader()
        return spec


def shadowed():
    """Run the sitecustomize that this one stands before, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def begin():
    """Find our packages where the recording command lives, and start recording this process."""
    asked = json.loads(os.environ[VARIABLE])
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    worker = os.path.join(asked["root"], "oracle", "worker.py")
    spec = importlib.util.spec_from_file_location("_oracle_worker", worker)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.meta_path.insert(0, module.Finder(asked["root"]))
    from oracle.recorder.session import Options, Session, watch_the_end

    session = Session(Options.of(asked))
    session.start()
    watch_the_end(session)


shadowed()
if VARIABLE in os.environ:
    sys.meta_path.insert(0, AfterTorch(begin))
