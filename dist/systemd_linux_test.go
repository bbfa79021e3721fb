package dist_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// settings returns the words of all lines of the unit that set name.
func settings(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(read(t, "flanneld.service")) {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			all = append(all, strings.Fields(value)...)
		}
	}
	if len(all) == 0 {
		t.Fatalf("the unit does not set %s", name)
	}
	return all
}

// systemd parses the packages' unit, warns of unknown lines, and rates what the service may do.
func TestSystemdUnit(t *testing.T) {
	unit := read(t, "flanneld.service")
	condition := read(t, "packaging", "flanneld.condition")
	installed := strings.Replace(unit, "ExecStart=/usr/local/bin/flanneld", condition+"ExecStart=/bin/true", 1)
	if installed == unit {
		t.Fatal("the unit does not start /usr/local/bin/flanneld")
	}
	path := filepath.Join(t.TempDir(), "flanneld.service")
	if err := os.WriteFile(path, []byte(installed), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", path).CombinedOutput(); err != nil || strings.Contains(string(out), "flanneld.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// In tenths, from 0 (nothing allowed) to 100. A service without restrictions has 96; running.md has the unit's figure.
	const mostExposed = "30"
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold="+mostExposed, "--no-pager", path).CombinedOutput(); err != nil {
		t.Errorf("the service may do more than it should: %v\n%s", err, out)
	}
}

// After a boot /run is empty, and systemd mounts these paths before any command of the unit, also one with +, could
// create them.
func TestSystemdUnitAfterBoot(t *testing.T) {
	for _, path := range settings(t, "ReadWritePaths") {
		if !strings.HasPrefix(path, "-") {
			t.Errorf("if %s does not exist, no command of the unit starts: put - before it", path)
		}
	}
}

// The service may write the subnet file where it is by default, and the CNI files where the chart, like most runtimes,
// expects them.
func TestSystemdUnitPaths(t *testing.T) {
	help, err := os.ReadFile("../cmd/flanneld/testdata/help.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range settings(t, "RuntimeDirectory") {
		if !strings.Contains(strings.Join(strings.Fields(string(help)), " "), "(default /run/"+name+"/subnet.env)") {
			t.Errorf("the default of --subnet-file is not in /run/%s", name)
		}
	}
	for line := range strings.Lines(read(t, "chart/values.yaml")) {
		name, path, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if (name == "cniBinDir" || name == "cniConfDir") && strings.HasPrefix(path, "/") && !slices.Contains(settings(t, "ReadWritePaths"), "-"+path) {
			t.Errorf("the service may not write to %s, the chart's %s", path, name)
		}
	}
}

// iptables-legacy loads these two modules itself, which the service may not. The kernel loads all others.
func TestSystemdUnitModules(t *testing.T) {
	if slices.Contains(settings(t, "CapabilityBoundingSet"), "CAP_SYS_MODULE") {
		t.Error("the service may load any module")
	}
	for _, need := range []string{"modprobe@ip_tables.service", "modprobe@ip6_tables.service"} {
		if !slices.Contains(settings(t, "Wants"), need) || !slices.Contains(settings(t, "After"), need) {
			t.Errorf("the unit does not start after %s", need)
		}
	}
}

// A crash, or an abort by the watchdog, must not end with the exit status of an invalid command line.
func TestSystemdUnitAfterCrash(t *testing.T) {
	const crash = "FLANNEL_TEST_CRASH"
	how := map[string]func(){
		"panic": func() { go func() { panic("as asked for") }() },
		"abort": func() { _ = syscall.Kill(os.Getpid(), syscall.SIGABRT) },
	}
	if f := how[os.Getenv(crash)]; f != nil {
		_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
		f()
		select {}
	}
	for name := range how {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(append(os.Environ(), crash+"="+name), settings(t, "Environment")...)
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) {
			t.Fatalf("%s: %v", name, err)
		}
		end := exit.Sys().(syscall.WaitStatus)
		if end.Exited() && slices.Contains(settings(t, "RestartPreventExitStatus"), strconv.Itoa(end.ExitStatus())) {
			t.Errorf("%s: exit status %d, after which systemd does not restart the service", name, end.ExitStatus())
		}
	}
}
