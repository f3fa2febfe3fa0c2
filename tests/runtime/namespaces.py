# SPDX-License-Identifier: Apache-2.0
"""Creates two hosts on one machine, as connected network namespaces. Needs root and iproute2."""
import os
import shutil
import subprocess
import time


class Hosts:
    """Two connected namespaces: hosts.words(k) are the words that start a command on host k. They are removed at the end."""

    def __init__(self, number=None):
        number = os.getpid() if number is None else number  # another one for each pair that exists at the same time
        self.names = ["tsr%d%s" % (number % 100000, k) for k in "ab"]
        self.addresses = ["10.93.%d.%d" % (number % 250, k + 1) for k in range(2)]

    def __enter__(self):
        ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.names[0], "netns", self.names[0], "type", "veth", "peer", "name", self.names[1], "netns", self.names[1])
        for name, address in zip(self.names, self.addresses):
            # `ip netns exec` uses this file as /etc/hosts
            os.makedirs("/etc/netns/" + name)
            with open("/etc/netns/%s/hosts" % name, "w") as f:
                f.writelines(["127.0.0.1 localhost\n"] + ["%s %s\n" % pair for pair in zip(self.addresses, self.names)])
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", address + "/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
        self.wait_for_link()
        return self

    def wait_for_link(self):
        for name in self.names:  # the connection needs some time
            for _ in range(100):
                if b"state UP" in subprocess.run(["ip", "-n", name, "link", "show", name], capture_output=True).stdout:
                    break
                time.sleep(0.05)

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree("/etc/netns/" + name, ignore_errors=True)

    def words(self, k):
        return [
            "ip", "netns", "exec", self.names[k], "unshare", "--uts", "--ipc", "sh", "-c",
            'hostname %s && exec "$@"' % self.names[k], "sh"
        ]

    def received(self, k):
        text = subprocess.run([*self.words(k), "cat", "/proc/net/dev"], capture_output=True, text=True).stdout
        return int(next(l for l in text.splitlines() if l.strip().startswith(self.names[k])).split(":")[1].split()[0])

    def cut(self):
        subprocess.run(["ip", "-n", self.names[0], "link", "set", self.names[0], "down"], check=True)

    def mend(self):
        subprocess.run(["ip", "-n", self.names[0], "link", "set", self.names[0], "up"], check=True)
        self.wait_for_link()


def why_not():
    """Why this machine cannot have such hosts; empty: it can."""
    try:
        with Hosts() as hosts:
            if subprocess.run([*hosts.words(0), "true"], capture_output=True).returncode:
                return "no right to give a process another host name"
    except (OSError, subprocess.CalledProcessError) as e:
        return "no right to make network namespaces (%s)" % e
    return ""
