# SPDX-License-Identifier: Apache-2.0
"""meson-python with corrected wheel tags, and a second wheel. meson-python regards every *.so as an extension module of one Python version.
Ours are opened by ctypes, so the wheel is py3-none, and it runs on every Linux with the glibc version that its files need.

--config-settings=hosts=FOLDER also writes tessera-onnx-hosts to FOLDER: the plug-ins for UCX and MPI, which tessera-onnx[hosts] installs
beside the library. It has a copy of UCX, so that pip is enough on any system. It has no MPI: ranks must use that of their mpirun. Needs the
setting build-dir. Where UCX is not installed, nothing is written."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from mesonpy import *  # noqa: F401,F403  the other hooks
import mesonpy

PLUGINS = ("libtessera_ucx.so", "libtessera_mpi_openmpi.so", "libtessera_mpi_mpich.so")
SYSTEM = r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread))\.so"  # libraries of every Linux
# Where distributions keep the licence of a library.
LICENCES = {
    "ucx": ("/usr/share/doc/libucx0/copyright", "/usr/share/licenses/ucx/LICENSE"),
    "numactl": ("/usr/share/doc/libnuma1/copyright", "/usr/share/licenses/numactl/LICENSE.LGPL2.1"),
    "LGPL-2.1": ("/usr/share/common-licenses/LGPL-2.1", "/usr/share/licenses/common/LGPL-2.1/license.txt"),
}
METADATA = """Metadata-Version: 2.1
Name: tessera-onnx-hosts
Version: %s
Summary: Plug-ins of tessera-onnx for several hosts: UCX, Open MPI, MPICH
License: Apache-2.0 AND BSD-3-Clause AND LGPL-2.1-or-later
Author: The Tessera authors
Requires-Python: >=3.9
Requires-Dist: tessera-onnx==%s
Description-Content-Type: text/markdown

Several hosts for Tessera: `pip install 'tessera-onnx[hosts]'` installs this package, which `tessera worker` and `--hosts` need. It has
plug-ins for UCX, Open MPI and MPICH, and unchanged copies of UCX and libnuma, with their licences. MPI is that of the system.
"""


def _glibc(data):
    """Returns the newest glibc version that a file needs: (2, 34) for GLIBC_2.34."""
    return max([(2, 5), *(tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", data))])


def _platform(files, machine):
    """Returns the platform tag of a wheel with these files: "manylinux_2_34_x86_64"."""
    return "manylinux_%d_%d_%s" % (*max(map(_glibc, files)), machine)


def _read(path):
    with open(path, "rb") as f:
        return f.read()


def _copy_ucx(plugin, folder):
    """Copies the libraries that the plug-in needs. UCX opens its modules in a folder `ucx` beside its library, by name."""
    needed = subprocess.run(["ldd", plugin], check=True, stdout=subprocess.PIPE, text=True).stdout
    libraries = [path for path in re.findall(r"=> (/\S+)", needed) if not re.match(SYSTEM, os.path.basename(path))]
    modules = os.path.join(os.path.dirname(next(path for path in libraries if "libucs." in path)), "ucx", "*.so.0")
    os.makedirs(folder + "/ucx")
    for path in libraries:
        shutil.copyfile(path, os.path.join(folder, os.path.basename(path)))
    for path in glob.glob(modules):
        shutil.copyfile(path, os.path.join(folder, "ucx", os.path.basename(path)))


def _copy_licences(folder):
    os.makedirs(folder)
    for name, places in LICENCES.items():
        shutil.copyfile(next(path for path in places if os.path.exists(path)), os.path.join(folder, name + ".txt"))


def _write_hosts(build, version, machine, folder):
    """Writes the wheel of the plug-ins."""
    plugins = [path for path in (os.path.join(build, name) for name in PLUGINS) if os.path.exists(path)]
    with tempfile.TemporaryDirectory() as tree:
        library, info = tree + "/tessera/lib", "%s/tessera_onnx_hosts-%s.dist-info" % (tree, version)
        _copy_ucx(plugins[0], library + "/ucx")
        for path in plugins:
            shutil.copyfile(path, os.path.join(library, os.path.basename(path)))
        _copy_licences(info + "/licenses")
        files = [_read(path) for path in glob.glob(library + "/**", recursive=True) if os.path.isfile(path)]
        with open(info + "/METADATA", "w", encoding="utf-8") as f:
            f.write(METADATA % (version, version))
        with open(info + "/WHEEL", "w", encoding="utf-8") as f:
            f.write("Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\nTag: py3-none-%s\n" % _platform(files, machine))
        os.makedirs(folder, exist_ok=True)
        subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", folder, tree], check=True, stdout=subprocess.PIPE)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = dict(config_settings or {})
    hosts = settings.pop("hosts", None)
    name = mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
    path = os.path.join(wheel_directory, name)
    machine = name.rsplit("linux_", 1)[-1][:-len(".whl")]
    with zipfile.ZipFile(path) as wheel:
        platform = _platform(map(wheel.read, wheel.namelist()), machine)
    if hosts and os.path.exists(os.path.join(settings["build-dir"], PLUGINS[0])):
        _write_hosts(settings["build-dir"], name.split("-")[1], machine, hosts)
    command = [
        sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", "py3", "--abi-tag", "none", "--platform-tag", platform, path
    ]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
