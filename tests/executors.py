# SPDX-License-Identifier: GPL-2.0-only
"""`tandem tune --executor`: a Slurm of one machine, and ssh to this one, both on loopback and for these tests alone.

usage: executors.py [BUILD_DIR]     as root; needs slurmctld, slurmd, munge, openssh-server (./run setup)
"""

from contextlib import contextmanager
import os
from pathlib import Path
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PATIENCE_S = 120
# Longer than anybody waits: what takes so long is ended by somebody, or not at all.
FOREVER_S = 10 * PATIENCE_S
# A program whose runs can be counted, with where they were: it ends its own job, or its connection, if it is told so once.
# Two at a time on one machine are noted.
PROGRAM = """#!/bin/sh
seconds=$(cat seconds)
echo "${SLURM_JOB_ID:-none} ${SSH_CONNECTION:+ssh} $TANDEM_HOST" >> runs
exec 9> "busy-$TANDEM_HOST"
flock --nonblock 9 || echo "$TANDEM_HOST" >> twice
if rm lose 2> /dev/null; then
	[ -n "$SLURM_JOB_ID" ] && scancel "$SLURM_JOB_ID"
	[ -n "$SSH_CONNECTION" ] && kill -9 $(ps -o ppid= -p $PPID)
	exec sleep FOREVER
fi
exec sleep "$seconds"
"""
SLURM_CONF = """
ClusterName=tandem
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
SSHD_CONF = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
AcceptEnv TANDEM_HOST
PidFile none
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""
SSH_CONF = """
Host one
  SetEnv TANDEM_HOST=one
Host two
  SetEnv TANDEM_HOST=two
Host *
  Port {port}
  User root
  HostName 127.0.0.1
  IdentityFile {folder}/key
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
"""


def free_ports(count):
    """Ports of loopback that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def processes_in(folder):
    """Processes whose present directory is this one, by number."""
    def is_there(process):
        try:
            return (process / "cwd").resolve(strict=True) == folder.resolve()
        except OSError:
            return False
    return [process.name for process in Path("/proc").glob("[0-9]*") if is_there(process)]


def wait_for(what, condition):
    """Waits until it is so."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.1)


class Slurm:
    """A Slurm of this machine alone, with its own keys, ports and files."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, {}
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "slurm.conf").write_text(
            SLURM_CONF.format(host=host, folder=folder, ports=free_ports(2), cpus=os.cpu_count()))
        # The daemons refuse keys that others can read, and folders that others can write.
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        # The file system of one machine shows a reply at once.
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "TANDEM_SLURM_LOST_AFTER": "6"}
        munge = [f"--{name}={folder}/munge.{kind}" for name, kind in
                 (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]
        self.start("munged", "--foreground", "--force", *munge)
        wait_for("munged is there", (folder / "munge.socket").exists)
        self.start("slurmctld", "-D", "-c")
        wait_for("slurmctld answers", lambda: self.ask("scontrol", "ping").returncode == 0)
        self.start_node()

    def start(self, name, *arguments):
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [f"/usr/sbin/{name}", *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_node(self):
        self.start("slurmd", "-D")
        wait_for("the node is idle", lambda: self.ask("sinfo", "--noheader", "--format=%T").stdout.strip() == "idle")

    def ask(self, *command):
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def jobs(self):
        return self.ask("squeue", "--noheader", "--array", "--format=%i").stdout.split()

    def stop(self):
        for name in ("slurmd", "slurmctld", "munged"):
            self.daemons[name].terminate()
            self.daemons[name].wait(PATIENCE_S)


class Bench(unittest.TestCase):
    """A program to tune in a folder of its own."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        (self.folder / "prog").write_text(PROGRAM.replace("FOREVER", str(FOREVER_S)))
        (self.folder / "prog").chmod(0o755)
        (self.folder / "seconds").write_text("0.05")

    def tearDown(self):
        self.temporary.cleanup()

    def command(self, *arguments):
        return [BUILD / "bin/tandem", "tune", "--repeats", "4", "--pages", "first-touch", *arguments, "--", "./prog", "{threads}"]

    def tune(self, *arguments):
        return subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)

    @contextmanager
    def tuning(self, *arguments):
        """The same under way; whatever becomes of the test, it is over then."""
        with subprocess.Popen(self.command(*arguments), cwd=self.folder, env=self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tuning:
            try:
                yield tuning
            finally:
                tuning.kill()

    def runs(self):
        """Where the program ran, a line each time."""
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def rows(self):
        """How many runs are kept."""
        store = sqlite3.connect(f"file:{self.folder}/prog.tandem.sqlite?mode=ro", uri=True)
        try:
            return store.execute("SELECT count(*) FROM run").fetchone()[0]
        finally:
            store.close()

    def check_result(self, done):
        """It was tuned, and every run is kept once."""
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.folder / "prog.tandem.toml").exists())
        self.assertGreaterEqual(self.rows(), 8)
        self.assertFalse((self.folder / "twice").exists(), "two runs at a time on one machine")


class WithSlurm(Bench):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory()
        cls.slurm = Slurm(Path(cls.home.name))
        cls.environment = cls.slurm.environment

    @classmethod
    def tearDownClass(cls):
        cls.slurm.stop()
        cls.home.cleanup()

    def setUp(self):
        super().setUp()
        wait_for("no job of another test is left", lambda: not self.slurm.jobs())

    def test_trials_are_jobs_and_their_results_are_in_the_one_store(self):
        done = self.tune("--executor", "slurm")
        self.check_result(done)
        self.assertEqual(len(self.runs()), self.rows())
        self.assertFalse([run for run in self.runs() if run.startswith("none")], "a run outside of Slurm")
        left = [path.name for path in (self.folder / "tandem-jobs").iterdir()]
        self.assertEqual(left, ["lock"], "files of jobs that have ended")

    def test_a_lost_job_is_run_again(self):
        (self.folder / "lose").touch()
        done = self.tune("--executor", "slurm")
        self.check_result(done)
        self.assertEqual(len(self.runs()), self.rows() + 1, f"and the one that was lost: {done.stderr}")

    def test_a_job_that_is_lost_again_and_again_ends_the_session_in_words(self):
        (self.folder / "prog").write_text("#!/bin/sh\nscancel $SLURM_JOB_ID\nexec sleep 60\n")
        done = self.tune("--executor", "slurm")
        self.assertEqual(done.returncode, 2)
        self.assertIn("a job ended 3 times without a reply", done.stderr)

    def test_a_lost_node_loses_no_finished_trial(self):
        (self.folder / "seconds").write_text("0.5")
        with self.tuning("--executor", "slurm") as tuning:
            wait_for("some runs", lambda: len(self.runs()) >= 4)
            node = self.slurm.daemons["slurmd"]
            node.kill()
            node.wait()
            kept = self.rows()
            self.slurm.ask("scontrol", "update", f"NodeName={socket.gethostname().split('.')[0]}", "State=DOWN", "Reason=gone")
            self.slurm.start_node()
            self.slurm.ask("scontrol", "update", f"NodeName={socket.gethostname().split('.')[0]}", "State=RESUME")
            said = tuning.communicate(timeout=2 * PATIENCE_S)[0]
        self.assertEqual(tuning.returncode, 0, said)
        self.assertGreaterEqual(kept, 3)
        self.assertLessEqual(len(self.runs()), self.rows() + 1, "what ran when the node went")

    def kill_a_session(self):
        """Leaves jobs that run and jobs that wait to whoever comes next."""
        (self.folder / "seconds").write_text("0.5")
        with self.tuning("--executor", "slurm"):
            wait_for("some runs", lambda: len(self.runs()) >= 4)
        self.assertTrue(self.slurm.jobs())

    def check_taken_over(self, done):
        self.check_result(done)
        self.assertIn("they are taken over", done.stderr)
        self.assertEqual(len(self.runs()), self.rows(), f"nothing ran twice: {done.stderr}")
        left = [path.name for path in (self.folder / "tandem-jobs").iterdir()]
        self.assertEqual(left, ["lock"], "files of jobs that have ended")

    def test_after_a_kill_jobs_that_are_under_way_are_taken_over(self):
        self.kill_a_session()
        self.check_taken_over(self.tune("--executor", "slurm"))

    def test_after_a_kill_jobs_that_are_done_are_taken_over(self):
        self.kill_a_session()
        wait_for("all jobs are done", lambda: not self.slurm.jobs())
        self.check_taken_over(self.tune("--executor", "slurm"))

    def test_a_job_that_nobody_was_told_of_is_taken_over(self):
        sbatch = self.folder / "bin/sbatch"
        sbatch.parent.mkdir()
        sbatch.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@" || exit\n'
                          "[ -s runs ] && rm kill 2> /dev/null && kill -9 $PPID\nexit 0\n")
        sbatch.chmod(0o755)
        (self.folder / "kill").touch()
        environment = {**self.environment, "PATH": f"{sbatch.parent}:{os.environ['PATH']}"}
        killed = subprocess.run(self.command("--executor", "slurm"), cwd=self.folder, env=environment, check=False,
                                capture_output=True)
        self.assertEqual(killed.returncode, -signal.SIGKILL)
        self.check_taken_over(self.tune("--executor", "slurm"))

    def test_ctrl_c_cancels_what_runs_and_keeps_what_is_done(self):
        (self.folder / "seconds").write_text("0.5")
        with self.tuning("--executor", "slurm") as tuning:
            wait_for("some runs", lambda: len(self.runs()) >= 3)
            (self.folder / "seconds").write_text(str(FOREVER_S))
            before = len(self.runs())
            wait_for("one that does not end by itself", lambda: len(self.runs()) > before)
            tuning.send_signal(signal.SIGINT)
            said = tuning.communicate(timeout=PATIENCE_S)[0]
        self.assertEqual(tuning.returncode, 130, said)
        self.assertGreaterEqual(self.rows(), 2)
        wait_for("no job is left", lambda: not self.slurm.jobs())

    def test_what_slurm_refuses_is_told(self):
        done = self.tune("--executor", "slurm", "--slurm-option=--partition=none")
        self.assertEqual(done.returncode, 2)
        self.assertIn("sbatch refused:", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


class WithSsh(Bench):
    @classmethod
    def setUpClass(cls):
        cls.environment = dict(os.environ)
        cls.home = tempfile.TemporaryDirectory()
        folder, (port,) = Path(cls.home.name), free_ports(1)
        for name in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd_config").write_text(SSHD_CONF.format(port=port, folder=folder))
        (folder / "ssh_config").write_text(SSH_CONF.format(port=port, folder=folder))
        # sshd wants this folder, which its service would make.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        cls.log = (folder / "sshd.log").open("wb")
        cls.sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd_config"], stderr=cls.log)
        cls.ssh = f"ssh -F {folder / 'ssh_config'}"
        reached = ["ssh", "-F", folder / "ssh_config", "-o", "BatchMode=yes", "any", "true"]
        wait_for("sshd answers", lambda: subprocess.run(reached, capture_output=True, check=False).returncode == 0)

    @classmethod
    def tearDownClass(cls):
        cls.sshd.terminate()
        cls.sshd.wait(PATIENCE_S)
        cls.log.close()
        cls.home.cleanup()

    def test_trials_run_on_all_hosts(self):
        done = self.tune("--executor", "ssh-hosts", "--hosts", "one,two", "--ssh", self.ssh)
        self.check_result(done)
        self.assertEqual(len(self.runs()), self.rows())
        self.assertEqual(set(self.runs()), {"none ssh one", "none ssh two"})

    def test_a_lost_connection_loses_no_run(self):
        (self.folder / "lose").touch()
        done = self.tune("--executor", "ssh-hosts", "--hosts", "one,two", "--ssh", self.ssh)
        self.check_result(done)
        self.assertIn("no reply", done.stderr)
        self.assertEqual(len(self.runs()), self.rows() + 1)

    def test_hosts_that_cannot_be_reached_end_the_session_in_words(self):
        done = self.tune("--executor", "ssh-hosts", "--hosts", "one", "--ssh", f"{self.ssh} -p 1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no host is left", done.stderr)

    def test_ctrl_c_ends_the_program_on_its_host(self):
        (self.folder / "seconds").write_text(str(FOREVER_S))
        with self.tuning("--executor", "ssh-hosts", "--hosts", "one", "--ssh", self.ssh) as tuning:
            wait_for("a run", self.runs)
            tuning.send_signal(signal.SIGINT)
            said = tuning.communicate(timeout=PATIENCE_S)[0]
        self.assertEqual(tuning.returncode, 130, said)
        wait_for("nothing is left", lambda: not processes_in(self.folder))


if __name__ == "__main__":
    for needed in ("/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/sbin/sshd"):
        if not shutil.which(needed):
            sys.exit(f"executors: {needed} is not there: ./run setup installs it")
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        BUILD = Path(sys.argv.pop(1)).resolve()
    # Who runs tests in the background may ignore it, and then the programs that are interrupted here would as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
