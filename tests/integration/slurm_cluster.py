"""A real Slurm of four nodes, each with a network and an sshd of its own, from packages that are only unpacked."""

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import RLDBG, rldbg
from free_networks import free_network, free_port

PACKAGES = (
    "openssh-server libwrap0 slurm-client slurmctld slurmd slurm-wlm-basic-plugins libslurm38 libhwloc15".split()  # noqa: SIM905
)
CACHE = Path(__file__).parents[2] / ".cache" / "debs"
NODES = (9, 10, 11, 12)
NEEDS_SLURM = pytest.mark.skipif(
    os.geteuid() != 0 or platform.system() != "Linux" or not shutil.which("ip") or not shutil.which("apt-get"),
    reason="needs root, network namespaces and Debian's packages",
)


def unpacked() -> Path:
    """The packages, fetched once and only unpacked: nothing is installed."""
    root = CACHE / "root"
    if not (root / "usr" / "sbin" / "sshd").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["apt-get", "download", *PACKAGES], cwd=CACHE, check=True, capture_output=True, timeout=120)
        except subprocess.SubprocessError as error:
            pytest.skip(f"Debian's packages cannot be had: {error}")
        for package in CACHE.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    return root


def run(*words, **settings):
    return subprocess.run(
        [str(word) for word in words], check=True, capture_output=True, text=True, timeout=60, **settings
    )


def wait_for(condition, what: str, timeout_s: float = 40.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {timeout_s} s")


class Cluster:
    """Slurm's controller and the login node's sshd on this machine, four nodes in network namespaces."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.net = free_network()
        self.tag = f"rlds{self.net.rpartition('.')[2]}n"
        self.plugins = next(root.glob("usr/lib/*/slurm-wlm"))
        libraries = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu"), self.plugins]
        self.environment = dict(os.environ) | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "PATH": f"{root}/usr/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RLDBG_HOME": str(folder / "home"),
        }
        self.processes: list[subprocess.Popen] = []

    @property
    def ssh(self) -> str:
        return f"ssh -F {self.folder}/ssh_config"

    def start(self) -> None:
        self._make_network()
        self._write_configuration()
        self._spawn("controller", [f"{self.root}/usr/sbin/slurmctld-wlm", "-D", "-c"])
        self._spawn("login", self._privately("login", self._sshd("login", f"{self.net}.1", 2200)))
        for node in NODES:
            refuses = node == 9
            slurmd = f"{self.root}/usr/sbin/slurmd-wlm -D -N node-{node}"
            sshd = self._sshd(f"node-{node}", f"{self.net}.{node}", 22, refuses=refuses)
            self._spawn(f"node-{node}", self._privately(f"{self.tag}{node}", f"{sshd} & exec {slurmd}"))
        wait_for(lambda: "idle 4" in self.command("sinfo", "-h", "-o", "%T %D"), "all nodes idle")
        wait_for(lambda: self.ssh_works("node-10"), "sshd up")

    def stop(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for node in NODES:
            listed = subprocess.run(
                ["ip", "netns", "pids", f"{self.tag}{node}"], capture_output=True, text=True, check=False
            )
            for pid in listed.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", f"{self.tag}{node}"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.tag}br"], check=False, capture_output=True)

    def command(self, *words: str) -> str:
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False, cwd=self.folder
        ).stdout

    def ssh_works(self, host: str) -> bool:
        return subprocess.run([*self.ssh.split(), host, "true"], capture_output=True, check=False).returncode == 0

    def submit(self, script: str, *options: str) -> str:
        file = self.folder / f"job{time.monotonic_ns()}.sh"
        file.write_text(script)
        answer = run("sbatch", "--parsable", *options, file, env=self.environment, cwd=self.folder)
        return answer.stdout.strip()

    def tunnel(self, *words: str, **more: str) -> subprocess.CompletedProcess:
        words = ("tunnel", "--ssh", self.ssh, *words)
        return rldbg(self.folder, *words, env=self.environment, stdin="", timeout_s=60, **more)

    @contextlib.contextmanager
    def open_tunnel(self, *words: str, environment=None) -> Iterator[tuple[dict, subprocess.Popen]]:
        process = subprocess.Popen(
            [*RLDBG, "tunnel", "--json", "--ssh", self.ssh, *words],
            env=environment or self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            yield json.loads(line or "{}"), process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            process.stderr.close()

    def _make_network(self) -> None:
        bridge = f"{self.tag}br"
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.net}.1/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for node in NODES:
            space = f"{self.tag}{node}"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", f"{space}v", "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", f"{space}v", "master", bridge, "up")
            run("ip", "-n", space, "addr", "add", f"{self.net}.{node}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")

    def _write_configuration(self) -> None:
        folder = self.folder
        for name in ("state", "log", "run", "spool", "upper", "home"):
            (folder / name).mkdir()
        shutil.copy(self.root / "usr" / "sbin" / "slurmstepd-wlm", folder / "upper" / "slurmstepd")
        (folder / "slurm.conf").write_text(
            f"ClusterName=t\nSlurmctldHost={os.uname().nodename}({self.net}.1)\nAuthType=auth/none\nCredType=cred/none\n"
            f"PluginDir={self.plugins}\nSlurmUser=root\nSlurmdUser=root\n"
            f"SlurmctldPort={free_port()}\nSlurmdPort={free_port()}\n"
            f"SlurmctldPidFile={folder}/run/ctld.pid\nSlurmdPidFile={folder}/run/%n.pid\nSlurmdSpoolDir={folder}/spool/%n\n"
            f"StateSaveLocation={folder}/state\nSlurmctldLogFile={folder}/log/ctld.log\nSlurmdLogFile={folder}/log/%n.log\n"
            "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSelectType=select/linear\nSchedulerType=sched/builtin\n"
            "SwitchType=switch/none\nReturnToService=2\nJobAcctGatherType=jobacct_gather/none\n"
            "AccountingStorageType=accounting_storage/none\nMpiDefault=none\nKillWait=1\n"
            f"NodeName=node-[9-12] NodeAddr={self.net}.[9-12] CPUs=2 State=UNKNOWN\n"
            "PartitionName=batch Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4\n"
        )
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key")
        (folder / "ssh_config").write_text(
            f"Host login\n  HostName {self.net}.1\n  Port 2200\n"
            + "".join(f"Host node-{node}\n  HostName {self.net}.{node}\n" for node in NODES)
            + f"Host *\n  User root\n  IdentityFile {folder}/key\n  IdentitiesOnly yes\n"
            f"  StrictHostKeyChecking accept-new\n  UserKnownHostsFile {folder}/known_hosts\n  BatchMode yes\n"
        )
        users = Path("/etc/passwd").read_text() + "sshd:x:74:74::/run/sshd:/usr/sbin/nologin\n"
        (folder / "passwd").write_text(users)

    def _sshd(self, name: str, address: str, port: int, *, refuses: bool = False) -> str:
        file = self.folder / f"sshd_{name}"
        passed = " ".join(f"{key}={self.environment[key]}" for key in ("SLURM_CONF", "LD_LIBRARY_PATH", "PATH"))
        file.write_text(
            f"ListenAddress {address}\nPort {port}\nHostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\n"
            f"PermitRootLogin yes\nPasswordAuthentication no\nSetEnv {passed}\n"
            f"PidFile {self.folder}/run/{name}.sshd\n" + ("AllowUsers nobody\n" if refuses else "")
        )
        return f"{self.root}/usr/sbin/sshd -D -e -f {file}"

    def _privately(self, space: str, command: str) -> list[str]:
        """In a mount namespace where sshd finds its user and slurmd its step daemon; in the network of a node."""
        upper = self.folder / f"upper{space}"
        shutil.copytree(self.folder / "upper", upper)
        (self.folder / f"work{space}").mkdir()
        script = (
            f"mount -t overlay overlay /usr/sbin "
            f"-o lowerdir=/usr/sbin,upperdir={upper},workdir={self.folder}/work{space}"
            " && "
            f"mount --bind {self.folder}/passwd /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && "
        )
        enter = ["nsenter", f"--net=/var/run/netns/{space}"] if space != "login" else []
        return [*enter, "unshare", "-m", "sh", "-c", script + f"{{ {command}; }}"]

    def _spawn(self, name: str, words: list[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("w") as log:
            self.processes.append(
                subprocess.Popen(
                    words,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    # Slurm's sockets and paths must be short.
    folder = Path(f"/tmp/rldbg-slurm-{os.getpid()}")
    folder.mkdir(mode=0o755)
    made = Cluster(folder, unpacked())
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
