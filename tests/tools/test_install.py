# SPDX-License-Identifier: Apache-2.0
"""Tests the results of `make install`: a program outside the tree builds against them with pkg-config and with CMake, also after they were
moved, and runs; the installed command runs. usage: test_install.py BUILD [FLAG of the compiler ...]"""
import functools, glob, os, re, shutil, subprocess, sys, tempfile

import harness

BUILD = os.path.abspath(sys.argv[1])
CC = ["cc", *sys.argv[2:]]
PROGRAM = (
    '#include <tessera.h>\n#include <stdio.h>\nint main(void)\n{\n    tsr_session *s = tsr_session_new(NULL);\n    printf("tessera %s\\n",'
    ' tsr_version());\n    tsr_session_free(s);\n    return !s;\n}\n'
)
CMAKE = (
    'cmake_minimum_required(VERSION 3.16)\nproject(user C)\nfind_package(tessera 1.0 REQUIRED)\nadd_executable(user'
    ' user.c)\ntarget_link_libraries(user tessera::tessera)\n'
)


def run(words, **more):
    p = subprocess.run(words, capture_output=True, text=True, timeout=120, **more)
    assert p.returncode == 0, (words, p.returncode, p.stdout[-800:], p.stderr[-1500:])
    return p.stdout


TMP = tempfile.TemporaryDirectory(prefix="tessera-install-")


@functools.cache
def prefix():
    """Install below a new folder, once for all cases; returns it and the prefix inside it."""
    stage = TMP.name + "/stage"
    run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", stage])
    header = glob.glob(stage + "/**/include/tessera.h", recursive=True)[0]
    return stage, os.path.dirname(os.path.dirname(header))


def environment(where, **more):
    libraries = os.path.dirname(glob.glob(where + "/**/libtessera.so", recursive=True)[0])
    return dict(os.environ, LD_LIBRARY_PATH=libraries, **more)


def with_pkg_config(d):
    stage, where = prefix()
    folder = os.path.dirname(glob.glob(where + "/**/tessera.pc", recursive=True)[0])
    env = environment(where, PKG_CONFIG_PATH=folder, PKG_CONFIG_SYSROOT_DIR=stage)
    flags = run(["pkg-config", "--cflags", "--libs", "tessera"], env=env).split()
    open(d + "/user.c", "w").write(PROGRAM)
    run([*CC, d + "/user.c", "-o", d + "/user", *flags])
    assert run([d + "/user"], env=env).startswith("tessera 1."), "the program does not run"
    assert run(["pkg-config", "--modversion", "tessera"], env=env).strip() == run([d + "/user"], env=env).split()[1]


def statically(d):
    """Link libtessera.a with the libraries that tessera.pc names for it."""
    stage, where = prefix()
    archive = glob.glob(where + "/**/libtessera.a", recursive=True)[0]
    env = environment(where, PKG_CONFIG_PATH=os.path.dirname(archive) + "/pkgconfig", PKG_CONFIG_SYSROOT_DIR=stage)
    flags = [
        archive if word == "-ltessera" else word
        for word in run(["pkg-config", "--static", "--cflags", "--libs", "tessera"], env=env).split()
    ]
    assert archive in flags and {"-lz", "-ljansson"} <= set(flags), flags
    open(d + "/user.c", "w").write(PROGRAM)
    run([*CC, d + "/user.c", "-o", d + "/user", *flags])
    assert "libtessera" not in run(["ldd", d + "/user"])
    assert run([d + "/user"]).startswith("tessera 1."), "the program does not run"


def with_cmake(d):
    if not shutil.which("cmake"):
        return "no CMake here (apt-get install cmake)"
    _, where = prefix()
    shutil.copytree(where, d + "/moved", symlinks=True)  # an installation may be moved
    os.mkdir(d + "/source")
    open(d + "/source/user.c", "w").write(PROGRAM)
    open(d + "/source/CMakeLists.txt", "w").write(CMAKE)
    run(["cmake", "-S", d + "/source", "-B", d + "/build", "-DCMAKE_PREFIX_PATH=" + d + "/moved"])
    run(["cmake", "--build", d + "/build"])
    assert run([d + "/build/user"], env=environment(d + "/moved")).startswith("tessera 1.")
    open(d + "/source/CMakeLists.txt", "w").write(CMAKE.replace("tessera 1.0", "tessera 7.0"))
    p = subprocess.run(["cmake", "-S", d + "/source", "-B", d + "/other", "-DCMAKE_PREFIX_PATH=" + d + "/moved"], capture_output=True,
                       timeout=120)
    assert p.returncode != 0, "a version that is not there was found"


def the_command(d):
    _, where = prefix()
    env = environment(where)
    assert "tessera" in run([where + "/bin/tessera", "--version"], env=env)
    plugin = glob.glob(where + "/**/libtessera_ops.so", recursive=True)
    assert plugin, "the plug-in is not installed"
    assert os.access(os.path.join(os.path.dirname(plugin[0]), "tessera-ranks"), os.X_OK), "the program of the ranks is not next to it"
    for name in glob.glob(BUILD + "/libtessera_mpi_*.so") + glob.glob(BUILD +
                                                                      "/libtessera_ucx.so"):  # plug-ins that were built must be installed
        assert glob.glob(where + "/**/" + os.path.basename(name), recursive=True), name
    if os.path.exists(BUILD + "/libtessera_ucx.so"):
        told = subprocess.run([where + "/bin/tessera", "doctor"], capture_output=True, text=True, env=env).stdout
        assert re.search("^UCX +ok +plug-in found", told, re.M), told
    assert glob.glob(where + "/share/tessera/schemas/plan.json"), "the schemas are not installed"
    for name in ("tessera.1", "tessera"):
        assert glob.glob(where + "/share/**/%s*" % name, recursive=True), name


harness.run([with_pkg_config, statically, with_cmake, the_command])
harness.finish()
