# SPDX-License-Identifier: GPL-2.0-only
"""The Debian package as an administrator has it: a guest with four nodes, a Debian 12 and its systemd, in which the package is
installed, the service started, reloaded, killed, upgraded, taken back to the older version and removed.

usage: python3 -m unittest discover -v -s tests -p 'boot_package.py'     (3 minutes; cargo-deb is built first where
       it is not; needs ./run build, and root)
"""

from pathlib import Path
import shutil
import subprocess
import tempfile
import unittest

from package import CONFIG, NEWER, ROOT, debian, make, make_newer, run

INIT = ROOT / "tests/systemd-guest.sh"
# Nothing of these is needed in a guest.
LEFT_OUT = ["usr/share/doc", "usr/share/locale", "usr/share/man", "var/lib/apt", "var/cache/apt", "root"]
LIMIT_S = 1800
# What every step may use. `until_true` gives up after two minutes, so that the step fails and the next ones show why.
WORDS = f"""
config=/{CONFIG}
seq() {{ cat /sys/kernel/sched_ext/enable_seq; }}
state() {{ cat /sys/kernel/sched_ext/state; }}
property() {{ systemctl show --value --property="$1" scx_tandem; }}
agent() {{ property MainPID; }}
doing() {{ property StatusText; }}
until_true() {{
	tries=240
	until eval "$1"; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || {{ echo "not true: $1"; return 1; }}
		sleep 0.5
	done
}}
"""
# Name of a step, and what an administrator types. What it prints is compared below.
STEPS = {
    "install": "dpkg --install /this.deb > /dev/null; systemctl is-enabled scx_tandem; systemctl is-active scx_tandem; state",
    "start": "systemctl enable --quiet --now scx_tandem; systemctl is-active scx_tandem; state; doing",
    "rights": "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/$(agent)/status",
    "wrong": """echo 'page_rat = 1' >> $config; systemctl reload scx_tandem; until_true 'doing | grep -q refused'
        journalctl --quiet --unit=scx_tandem | grep -o 'tandem.toml:.*: there is no such option'; sed -i /page_rat/d $config
        doing | grep -o -e '^.*refused' -e 'there is no such option'; systemctl is-active scx_tandem; systemctl reload scx_tandem
        until_true '[ "$(doing)" = "observing (dry run) all" ]'; doing""",
    "reload": """before=$(seq); sed -i 's/^dry_run = true/dry_run = false/' $config; systemctl reload scx_tandem
        until_true '[ "$(doing)" = "placing all" ]'; doing; [ $before = $(seq) ] && echo without a gap""",
    "upgrade": """old=$(agent); dpkg --install /newer.deb > /dev/null; dpkg-query --show --showformat='${Version}\\n' tandem
        [ $old != $(agent) ] && echo restarted; systemctl is-active scx_tandem; state; grep ^dry_run $config""",
    "downgrade": """old=$(agent); dpkg --install /this.deb 2> /dev/null > /dev/null
        dpkg-query --show --showformat='${Version}\\n' tandem | grep -c '^0'
        [ $old != $(agent) ] && echo restarted; systemctl is-active scx_tandem; state; grep ^dry_run $config""",
    "later": """echo 'option_of_a_later_version = 1' >> $config; systemctl restart scx_tandem 2> /dev/null; state
        journalctl --quiet --unit=scx_tandem | grep -o '"option_of_a_later_version": there is no such option' | sort -u
        systemctl is-failed scx_tandem; property ExecMainStatus; property NRestarts
        sed -i /later_version/d $config; systemctl reset-failed scx_tandem; systemctl restart scx_tandem; state""",
    # Of this signal the agent takes no notice.
    "stuck": """dropin=/run/systemd/system/scx_tandem.service.d; mkdir -p $dropin
        printf '[Service]\\nKillSignal=SIGWINCH\\nTimeoutStopSec=2\\n' > $dropin/deaf.conf; systemctl daemon-reload
        systemctl stop scx_tandem; property Result; state; rm -r $dropin; systemctl daemon-reload
        systemctl reset-failed scx_tandem; systemctl start scx_tandem; state""",
    "hang": """before=$(seq); old=$(agent); kill -STOP $old
        until_true '[ $(agent) != 0 ] && [ $(agent) != '$old' ]'; until_true 'systemctl --quiet is-active scx_tandem'; [ $old != $(agent) ] && echo another agent
        [ $before = $(seq) ] && echo without a gap
        journalctl --quiet --unit=scx_tandem | grep -o -e 'Watchdog timeout' -e 'took over.*' | sort -u""",
    "orphan": """systemctl stop scx_tandem; state; scx_tandem --dry-run > /dev/null 2>&1 & orphan=$!
        until_true '[ $(state) = enabled ]'; kill -KILL $orphan; wait; state""",
    "remove": """dpkg --remove tandem > /dev/null 2>&1; state; ls /sys/fs/bpf; systemctl is-active scx_tandem
        ls $config; dpkg --purge tandem > /dev/null 2>&1; ls /etc/tandem 2>&1 | wc -l; systemctl list-unit-files --quiet 'scx_tandem*'""",
}
# What the steps print; a folder that is gone is one line of error.
SAID = {
    "install": "disabled inactive disabled",
    "start": 'active enabled observing (dry run) all',
    "wrong": 'there is no such option observing (dry run) all; a new configuration was refused there is no such option active '
             'observing (dry run) all',
    "reload": 'placing all without a gap',
    "stuck": "timeout disabled enabled",
    "orphan": "disabled enabled",
    "hang": "another agent without a gap Watchdog timeout took over the scheduler that is loaded",
    "upgrade": f"{NEWER} restarted active enabled dry_run = false",
    "downgrade": "1 restarted active enabled dry_run = false",
    "later": 'disabled "option_of_a_later_version": there is no such option failed 78 0 enabled',
    "remove": f"disabled inactive /{CONFIG} 1",
}


def script():
    """What the guest runs: each step leaves what it printed in /out, and shows it."""
    steps = "\n".join(f"( {words} ) > /out/{name} 2>&1\necho {name}:; cat /out/{name}" for name, words in STEPS.items())
    return f"{WORDS}\n{steps}\njournalctl --quiet --unit=scx_tandem > /out/journal\n"


def system(debs, folder):
    """A Debian with systemd and these packages in its root, as a compressed tar."""
    (folder / "debs").mkdir()
    for name, deb in debs.items():
        shutil.copy(deb, folder / "debs" / f"{name}.deb")
    tar = folder / "debian.tar.gz"
    left_out = [f"--exclude=./{path}/*" for path in LEFT_OUT]
    base = debian("debian-systemd", "systemd", "systemd-sysv")
    run("tar", "--use-compress-program", "gzip -1", "--create", "--file", tar, *left_out, "--directory", base, ".",
        "--directory", folder / "debs", *(f"{name}.deb" for name in debs))
    return tar


class Service(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            deb = make(folder / "this")
            tar = system({"this": deb, "newer": make_newer(deb, folder / "newer")}, folder)
            out = folder / "out"
            command = [ROOT / "vm/lab.py", "run", "--machine", ROOT / "vm/machines/4x2-ring.toml", "--timeout", str(LIMIT_S),
                       "--out", out, "--add", f"{INIT}:/init", "--add", f"{tar}:/debian.tar.gz", "--", "sh", "-c", script()]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            print(done.stdout, flush=True)
            assert done.returncode == 0, f"the guest ended with {done.returncode}"
            cls.said = {path.name: path.read_text() for path in out.iterdir()}

    def assert_said(self, name):
        self.assertEqual(" ".join(self.said[name].split()), SAID[name], self.said["journal"])

    def test_installed_it_waits_until_somebody_starts_it(self):
        self.assert_said("install")

    def test_started_means_loaded_and_observing_only(self):
        self.assert_said("start")

    def test_it_runs_with_the_rights_of_the_unit_and_no_others(self):
        # Bits 2, 19, 21, 23, 38, 39: DAC_READ_SEARCH, SYS_PTRACE, SYS_ADMIN, SYS_NICE, PERFMON, BPF.
        rights = dict(line.split(":") for line in self.said["rights"].splitlines())
        self.assertEqual(int(rights["CapBnd"], 16), 1 << 2 | 1 << 19 | 1 << 21 | 1 << 23 | 1 << 38 | 1 << 39)
        self.assertEqual((rights["NoNewPrivs"].strip(), rights["Seccomp"].strip()), ("1", "2"))

    def test_a_wrong_configuration_is_told_in_journal_and_status_and_changes_nothing(self):
        line = self.said["wrong"].splitlines()[0]
        self.assertTrue(line.startswith("tandem.toml:"), self.said["wrong"])
        self.said["wrong"] = self.said["wrong"].replace(line, "there is no such option", 1)
        self.assert_said("wrong")

    def test_a_reload_takes_effect_while_the_scheduler_stays_loaded(self):
        self.assert_said("reload")

    def test_no_scheduler_is_left_of_an_agent_that_does_not_stop(self):
        self.assert_said("stuck")

    def test_nor_of_one_that_was_killed_before_the_package_goes(self):
        self.assert_said("orphan")
        self.assert_said("remove")

    def test_an_agent_that_hangs_is_replaced_and_the_scheduler_stays_loaded(self):
        self.assert_said("hang")

    def test_an_upgrade_restarts_the_service_and_keeps_its_configuration(self):
        self.assert_said("upgrade")

    def test_so_does_the_way_back(self):
        self.assert_said("downgrade")

    def test_an_option_of_a_later_version_is_named_and_nothing_is_loaded_or_tried_again(self):
        self.assert_said("later")

    def test_removal_unloads_it_and_leaves_the_configuration_until_it_is_purged(self):
        self.assert_said("remove")


if __name__ == "__main__":
    unittest.main()
