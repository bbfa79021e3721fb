package dist_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// packageScript runs a script of a package in a mount namespace where /etc, /run and /var/lib are those of root. It returns
// the arguments of each systemctl, deb-systemd-helper and deb-systemd-invoke, and what the script prints. The service is
// enabled if enabled is set.
func packageScript(t *testing.T, root, script, arg string, enabled bool) (calls, output string) {
	t.Helper()
	stub := func(name, text string) {
		path := filepath.Join(root, "bin", name)
		write(t, path, "#!/bin/sh\n"+text)
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "etc", "run/systemd/system", "var/lib"} {
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
	const inside = `[ ! -e /usr/sbin/policy-rc.d ] || mount --bind /bin/true /usr/sbin/policy-rc.d
for dir in run var/lib etc; do mount --bind "$0/$dir" "/$dir"; done
PATH="$0/bin:$PATH" exec sh "$@"`
	out, err := exec.Command("unshare", "--mount", "sh", "-euc", inside, root, filepath.Join("packaging", script), arg).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return read(t, root, "calls"), string(out)
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
			if err := os.MkdirAll(filepath.Join(root, "etc", "default"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(root, "etc", "default", "flanneld"), c.settings)
			calls, _ := packageScript(t, root, script, arg, c.enabled)
			if !strings.HasSuffix(calls, "\n--no-block "+c.want+" flanneld.service\n") {
				t.Errorf("%s, enabled %t, want %s, with the settings\n%s\nit calls systemctl\n%s", script, c.enabled, c.want, c.settings, calls)
			}
		}
	}
}

// A unit in /etc replaces the package's unit of the same name. If it starts another program, such as flannel, the package
// leaves its service alone.
func TestPackageLeavesOtherUnit(t *testing.T) {
	const masked = "/dev/null"
	packaged := strings.Replace(read(t, "flanneld.service"), "/usr/local/bin/flanneld", "/usr/bin/flanneld", 1)
	changes := regexp.MustCompile(`\b(enable|preset|disable|stop|(try-)?restart|purge)\b.* flanneld\.service`)
	for script, args := range map[string][]string{
		"deb/postinst": {"configure"}, "rpm/postinst": {"1", "2"},
		"deb/prerm": {"remove"}, "rpm/prerm": {"0"}, "deb/postrm": {"purge"},
	} {
		for _, arg := range args {
			for unit, left := range map[string]bool{
				"":       false,
				masked:   false,
				packaged: false, // as by systemctl edit --full
				"[Service]\nExecStart=-/usr/bin/flanneld --iface=eth0\n":                   false,
				"[Service]\nExecStart = \"/usr/bin/flanneld\" --iface=eth0\n":              false,
				"[Service]\nExecStart=/usr/bin/nice -n -5 \\\n/usr/bin/flanneld\n":         false,
				"[Service]\nExecStart=/bin/sh -c 'ulimit -n 4096; exec /usr/bin/flanneld'": false,
				"[Service]\n # /usr/bin/flanneld\nExecStart=/opt/flannel/flanneld\n":       true,
				"[Service]\nExecStart=/opt/flannel/usr/bin/flanneld --iface=eth0\n":        true,
				"[Service]\nExecStart=/usr/bin/flanneld-v0.26.1 -iface=eth0\n":             true,
				strings.Replace(packaged, "/usr/bin/", "/usr/local/bin/", 1):               true,
			} {
				root := t.TempDir()
				const records = "var/lib/systemd/deb-systemd-helper-enabled"
				for _, dir := range []string{"etc/default", "etc/systemd/system", records + "/multi-user.target.wants"} {
					if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				write(t, filepath.Join(root, "etc", "default", "flanneld"), "FLANNELD_IFACE=eth0\n")
				path := filepath.Join(root, "etc", "systemd", "system", "flanneld.service")
				if unit == masked {
					if err := os.Symlink("/dev/null", path); err != nil {
						t.Fatal(err)
					}
				} else if unit != "" {
					write(t, path, unit)
				}
				record := filepath.Join(root, records, "flanneld.service.dsh-also")
				link := filepath.Join(root, records, "multi-user.target.wants", "flanneld.service")
				write(t, record, "/etc/systemd/system/multi-user.target.wants/flanneld.service\n")
				write(t, link, "")
				calls, output := packageScript(t, root, script, arg, true)
				failed := func(text, value string) {
					t.Helper()
					t.Errorf("%s %s, with the unit\n%s\nin /etc, %s %s", script, arg, unit, text, value)
				}
				if changes.MatchString(calls) == left {
					failed("calls", calls)
				}
				if !strings.HasSuffix(script, "prerm") && !strings.Contains(calls, "daemon-reload\n") {
					failed("does not reload the units:", calls)
				}
				if strings.Contains(output, "/etc/systemd/system/flanneld.service") != (left && strings.HasSuffix(script, "postinst")) {
					failed("prints", output)
				}
				// Without a record, the next upgrade would enable the service.
				if script == "deb/postinst" && left && !strings.Contains(calls, "update-state flanneld.service\n") {
					failed("records nothing:", calls)
				}
				for _, file := range []string{record, link} {
					if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) != (script == "deb/postrm" && left) {
						failed("deletes, or leaves, the record", file)
					}
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
