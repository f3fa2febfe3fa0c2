# SPDX-License-Identifier: Apache-2.0
"""meson-python with corrected wheel tags. meson-python regards every *.so as an extension module of one Python version. Ours are opened by
ctypes, so the wheel is py3-none, and it runs on every Linux with the glibc version that its files need."""
import os
import re
import subprocess
import sys
import zipfile

from mesonpy import *  # noqa: F401,F403  the other hooks
import mesonpy


def _oldest_glibc(path):
    """Returns the newest glibc version that a file of the wheel needs: (2, 34) for GLIBC_2.34."""
    newest = (2, 5)
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", wheel.read(name)):
                newest = max(newest, tuple(map(int, found)))
    return newest


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory)
    path = os.path.join(wheel_directory, name)
    machine = name.rsplit("linux_", 1)[-1][:-len(".whl")]
    platform = "manylinux_%d_%d_%s" % (*_oldest_glibc(path), machine)
    command = [
        sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", "py3", "--abi-tag", "none", "--platform-tag", platform, path
    ]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
