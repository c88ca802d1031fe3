"""Imported before SGLang where there is neither triton nor torchvision: stand-ins under their names."""

import importlib.util
import os
import sys
from unittest import mock

import torch


def stand_in_for_gpu_packages():
    """SGLang's own stand-in for triton, which it makes on another platform; another for torchvision."""
    root = importlib.util.find_spec("sglang").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("platform_stubs", os.path.join(root, "_platform_stubs.py"))
    stubs = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = stubs
    spec.loader.exec_module(stubs)
    with (
        mock.patch.object(sys, "platform", "darwin"),
        mock.patch.object(stubs.platform, "machine", return_value="arm64"),
        mock.patch.object(torch.backends.mps, "is_available", return_value=True),
    ):
        stubs.install_platform_stubs()
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()  # remembered, before there is something of that name
    import_utils.is_torchvision_v2_available()

    class Finder(stubs._TritonFinder):
        def find_spec(self, fullname, path=None, target=None):
            if fullname.split(".")[0] == "torchvision" and fullname not in sys.modules:
                sys.modules[fullname] = stubs._MockModule(fullname)
                return sys.modules[fullname].__spec__
            return None

    sys.meta_path.append(Finder())


stand_in_for_gpu_packages()
