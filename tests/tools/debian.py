# SPDX-License-Identifier: Apache-2.0
"""Empty Debian systems in folders, for tests of packages. Needs root, debootstrap and a Debian mirror."""
import glob
import os
import re
import shutil
import subprocess

ENV = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA") and k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
HOUR_S = 3600
CERTIFICATES = "/etc/package-index.crt"


def why_not():
    if os.getuid() or not shutil.which("debootstrap"):
        return "not root, or no debootstrap (tools/setup release)"


def run(words, timeout=900, **more):
    p = subprocess.run(words, capture_output=True, text=True, timeout=timeout, **{"env": ENV, **more})
    assert p.returncode == 0, (words, p.returncode, p.stdout[-800:], p.stderr[-1500:])
    return p.stdout


class Debian:
    """An empty Debian system in a folder. Commands run in their own namespaces, so that nothing stays mounted."""

    def __init__(self, release, folder):
        self.root = folder
        mirror = re.search(r"^(?:URIs: |deb )(http\S+/debian)/? ?", "".join(open(p).read() for p in ["/etc/apt/sources.list", *glob.glob(
            "/etc/apt/sources.list.d/*")] if os.path.isfile(p)), re.M)
        # in its own namespace, because debootstrap may leave /proc mounted in the folder, which is removed later
        run(["unshare", "--mount", "debootstrap", "--variant=minbase", release, folder, *([mirror.group(1)] if mirror else [])],
            timeout=HOUR_S)
        with open(folder + "/usr/sbin/policy-rc.d", "w") as f:  # packages must start no services
            f.write("#!/bin/sh\nexit 101\n")
        os.chmod(folder + "/usr/sbin/policy-rc.d", 0o755)

    def copy(self, folder):
        """Returns a second system with the same files."""
        run(["cp", "-a", self.root + "/.", folder], timeout=HOUR_S)
        other = object.__new__(Debian)
        other.root = folder
        return other

    def words(self, script, host=(), signal="KILL"):
        """The words that run a script in the system. host: words that start a command in a network namespace. signal: what the script
        gets if the command is killed; unshare itself ignores SIGTERM."""
        inside = (
            'mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" && mount -t tmpfs tmpfs "$0/dev/shm" && '
            'exec chroot "$0" /bin/sh -euc "$1"'
        )
        os.makedirs(self.root + "/dev/shm", exist_ok=True)
        return [*host, "unshare", "--mount", "--pid", "--fork", "--kill-child=" + signal, "sh", "-c", inside, self.root, script]

    @staticmethod
    def environment():
        given = {k: v for k, v in os.environ.items() if k.startswith("PIP_INDEX") or k.lower().endswith("_proxy")}
        if "PIP_CERT" in os.environ:
            given["PIP_CERT"] = CERTIFICATES
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **given}

    def run(self, script, host=()):
        return run(self.words(script, host), timeout=HOUR_S, env=self.environment())

    def apt(self, *words):
        return self.run("apt-get -qq update; apt-get -qq -y --no-install-recommends install %s" % " ".join(words))

    def reach_package_index(self):
        """Gives the system this machine's name servers, and the certificates that its pip uses."""
        shutil.copy("/etc/resolv.conf", self.root + "/etc/resolv.conf")
        if "PIP_CERT" in os.environ:
            shutil.copy(os.environ["PIP_CERT"], self.root + CERTIFICATES)
