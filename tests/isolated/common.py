"""Shared by the scripts of this folder and by support.py. Imports nothing: a script may block packages first."""

import sys


class Generic:
    """An array of a library that nobody knows: nothing but DLPack. (Not for bfloat16, which NumPy does not export.)"""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def block(*packages):
    """From now on these packages are not there, even if they are."""

    class Blocker:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] in packages:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Blocker)
