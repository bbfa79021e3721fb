package dist_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// packageScript runs a script of a package in a mount namespace where /etc/default, /etc/systemd/system and /run are
// directories of root, and returns the arguments of each systemctl, deb-systemd-helper and deb-systemd-invoke. The service
// is enabled if enabled is set.
func packageScript(t *testing.T, root, script, arg string, enabled bool) (calls string) {
	t.Helper()
	stub := func(name, text string) {
		path := filepath.Join(root, "bin", name)
		write(t, path, "#!/bin/sh\n"+text)
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "default", "units", "run/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "calls"), "")
	status := "1"
	if enabled {
		status = "0"
	}
	stub("systemctl", `echo "$*" >>`+root+`/calls
case $* in *is-enabled*) exit `+status+` ;; esac`)
	stub("deb-systemd-helper", `echo "$*" >>`+root+"/calls")
	stub("deb-systemd-invoke", `echo "$*" >>`+root+"/calls")
	const inside = `mkdir -p /etc/default /etc/systemd/system
mount --bind "$0/default" /etc/default
mount --bind "$0/units" /etc/systemd/system
mount --bind "$0/run" /run
[ ! -e /usr/sbin/policy-rc.d ] || mount --bind /bin/true /usr/sbin/policy-rc.d
PATH="$0/bin:$PATH" exec sh "$@"`
	if out, err := exec.Command("unshare", "--mount", "sh", "-euc", inside, root, filepath.Join("packaging", script), arg).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return read(t, root, "calls")
}

// A package starts the service only if the default file has a setting, as the unit's ExecCondition demands, which systemd
// before 243 ignores. A service that runs is restarted in any case.
func TestPackageStartsService(t *testing.T) {
	unset := read(t, "packaging", "flanneld.default")
	condition := find(t, read(t, "packaging", "flanneld.condition"), `-qE (".*") /etc/default/flanneld\n`)
	for script, arg := range map[string]string{"deb/postinst": "configure", "rpm/postinst": "2"} {
		if !strings.Contains(read(t, "packaging", script), condition) {
			t.Errorf("%s does not have the condition %s of the unit", script, condition)
		}
		for _, c := range []struct {
			settings string
			enabled  bool
			want     string
		}{
			{unset, true, "try-restart"},
			{unset + "FLANNELD_IFACE=eth0\n", true, "restart"},
			{unset + "FLANNELD_IFACE=eth0\n", false, "try-restart"},
		} {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "default"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(root, "default", "flanneld"), c.settings)
			calls := packageScript(t, root, script, arg, c.enabled)
			if !strings.HasSuffix(calls, "\n--no-block "+c.want+" flanneld.service\n") {
				t.Errorf("%s, enabled %t, want %s, with the settings\n%s\nit calls systemctl\n%s", script, c.enabled, c.want, c.settings, calls)
			}
		}
	}
}

// A unit in /etc replaces the package's unit of the same name. If it starts another program, such as flannel, the package
// leaves its service alone.
func TestPackageLeavesOtherUnit(t *testing.T) {
	packaged := strings.Replace(read(t, "flanneld.service"), "/usr/local/bin/flanneld", "/usr/bin/flanneld", 1)
	changes := regexp.MustCompile(`\b(enable|preset|disable|stop|(try-)?restart)\b.* flanneld\.service`)
	for script, args := range map[string][]string{"deb/postinst": {"configure"}, "rpm/postinst": {"1", "2"}, "deb/prerm": {"remove"}, "rpm/prerm": {"0"}} {
		for _, arg := range args {
			for unit, left := range map[string]bool{
				"":       false,
				packaged: false, // as by systemctl edit --full
				"[Service]\nExecStart=-/usr/bin/flanneld --iface=eth0\n":       false,
				"[Service]\nExecStart=/opt/flannel/flanneld --iface=eth0\n":    true,
				"[Service]\nExecStart=/usr/bin/flanneld-v0.26.1 -iface=eth0\n": true,
				strings.Replace(packaged, "/usr/bin/", "/usr/local/bin/", 1):   true,
			} {
				root := t.TempDir()
				for _, dir := range []string{"default", "units"} {
					if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				write(t, filepath.Join(root, "default", "flanneld"), "FLANNELD_IFACE=eth0\n")
				if unit != "" {
					write(t, filepath.Join(root, "units", "flanneld.service"), unit)
				}
				calls := packageScript(t, root, script, arg, true)
				if changes.MatchString(calls) == left {
					t.Errorf("%s %s, with the unit\n%s\nin /etc, calls\n%s", script, arg, unit, calls)
				}
			}
		}
	}
}

// Other daemons may use /run/flannel when the package is purged.
func TestPackagePurge(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "run", "flannel"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "run", "flannel", "subnet.env")
	write(t, file, "FLANNEL_SUBNET=10.5.34.1/24\n")
	packageScript(t, root, "deb/postrm", "purge", true)
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
