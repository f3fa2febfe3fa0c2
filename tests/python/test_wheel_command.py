# SPDX-License-Identifier: Apache-2.0
"""Tests that the command of a wheel knows its place: it lists chat and serve, with the options that Python reads, and proposes nothing that
only a source tree has. A folder with the modules and the program stands in for the wheel.

usage: test_wheel_command.py BUILD"""
import os
import re
import shutil
import subprocess
import sys

import harness

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def wheel(folder):
    package = os.path.join(folder, "tessera")
    shutil.copytree(BUILD + "/python/tessera", package, ignore=shutil.ignore_patterns("__pycache__"))
    os.mkdir(package + "/lib")
    for name in ("tessera", "libtessera.so.1"):  # the program finds the library beside it or in LD_LIBRARY_PATH
        shutil.copy(os.path.join(BUILD, name), package + "/lib/" + name)
    return folder


def command(folder, *words, **variables):
    environment = {
        "PATH": os.environ["PATH"], "HOME": folder, "PYTHONPATH": folder, "TESSERA_LIBRARY": folder + "/tessera/lib/libtessera.so.1",
        "LD_LIBRARY_PATH": folder + "/tessera/lib", **variables
    }
    ended = subprocess.run([sys.executable, "-B", "-m", "tessera", *words], cwd=folder, env=environment, capture_output=True, text=True,
                           timeout=harness.HANG_S)
    return ended.returncode, ended.stdout, ended.stderr


def options_of(text):
    return {name for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)} - {"--help", "--version"}


def completes_the_commands_of_python(folder):
    place = wheel(folder)
    for shell in ("bash", "zsh", "fish"):
        code, script, _ = command(place, "completion", shell)
        assert code == 0 and "chat" in script and "serve" in script, script[:500]
    open(folder + "/c.bash", "w").write(command(place, "completion", "bash")[1])
    words = (
        "source c.bash; COMP_WORDS=(tessera cha); COMP_CWORD=1; _tessera; echo ${COMPREPLY[@]}; COMP_WORDS=(tessera serve --po);"
        " COMP_CWORD=2; _tessera; echo ${COMPREPLY[@]}; COMP_WORDS=(tessera chat --sys); _tessera; echo ${COMPREPLY[@]}"
    )
    got = subprocess.run(["bash", "-c", words], cwd=folder, capture_output=True, text=True).stdout.split()
    assert got == ["chat", "--port", "--system"], got


def help_lists_what_python_reads(folder):
    place = wheel(folder)
    code, out, _ = command(place, "--help")
    assert code == 0 and re.search(r"^  chat  ", out, re.M) and re.search(r"^  serve  ", out, re.M) and "adds chat" not in out, out
    for name in ("chat", "serve"):
        code, python, err = command(place, name, "--help")
        assert code == 0, err
        code, program, _ = command(place, "help", name)
        assert code == 0 and options_of(python.split("\n\n", 1)[1]) == options_of(program), (options_of(python), options_of(program))
    assert "--prompt TEXT" in command(place, "generate", "--help")[1].split("\n")[2]


def doctor_proposes_pip(folder):
    place = wheel(folder)
    code, out, err = command(place, "doctor", TESSERA_ORT="/nonexistent.so")
    assert code == 1 and "pip install onnxruntime" in out and "rebuild" not in out and "tools/setup" not in out, out + err
    packages, = re.findall(r"^Python packages +(\w+) +(.*)$", out, re.M)
    assert packages[1].startswith(sys.version.split()[0]) and (packages[0] == "ok") == ("missing" not in packages[1]), packages
    assert packages[0] == "ok" or "pip install 'tessera-onnx[serve]'" in out, out
    for what in ("Open MPI", "MPICH", "UCX"):
        help_text, = re.findall(r"^%s +missing .*\n +help: (.*)$" % what, out, re.M)
        assert "pip install 'tessera-onnx[hosts]'" in help_text, (what, help_text)


def hosts_name_the_second_wheel(folder):
    """Without plug-ins, ranks on several hosts need UCX or MPI: the message names the command that installs them."""
    place = wheel(folder)
    with open(folder + "/secret", "w") as f:
        f.write("0123456789abcdef0123456789abcdef\n")
    os.chmod(folder + "/secret", 0o600)
    model = ROOT + "/tests/models/bert_tiny/model.onnx"
    code, out, err = command(place, "partition", model, "--devices", "2", "-o", folder + "/parts")
    assert code == 0, err
    by_hand = ["run", folder + "/parts", "--hosts", "127.0.0.1:1,127.0.0.2:1", "--rank", "0", "--secret-file", folder + "/secret"]
    for words in (by_hand, [*by_hand, "--transport", "ucx"], ["worker", "--listen", "127.0.0.2", "--secret-file", folder + "/secret"]):
        code, out, err = command(place, *words)
        assert code in (2, 7) and "plugin-absent" in err and "libucx-dev" not in err, (words, err)
        assert "pip install 'tessera-onnx[hosts]'" in err, (words, err)
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    code, out, err = command(place, "run", folder + "/parts", **mpi)
    assert code == 7 and "plugin-absent" in err and "pip install 'tessera-onnx[hosts]'" in err, (code, err)


def source_tree_lists_its_own(folder):
    ended = subprocess.run([BUILD + "/tessera", "--help"], capture_output=True, text=True)
    assert "adds chat and serve" in ended.stdout and not re.search(r"^  chat  ", ended.stdout, re.M), ended.stdout
    assert "tools/setup" in subprocess.run([BUILD + "/tessera", "doctor"], capture_output=True, text=True,
                                           env={"PATH": "/usr/bin:/bin", "TESSERA_ORT": "/nonexistent.so"}).stdout


harness.run([
    completes_the_commands_of_python, help_lists_what_python_reads, doctor_proposes_pip, hosts_name_the_second_wheel,
    source_tree_lists_its_own
])
harness.finish()
