//go:build linux

// Package nstest runs a test in a child process with new network, mount, PID
// and host name namespaces, which end with the child. The network of the host is
// never changed. The child is the same test program with -test.run, and a variable in its
// environment says that it is in the namespaces.
package nstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside is an environment variable that names the test that the child runs.
const inside = "FLANNEL_NSTEST"

// emulated is an environment variable that make test-emulated sets for tests of
// another architecture. An emulator cannot start such a program in new namespaces,
// so that these tests run in the other targets alone.
const emulated = "FLANNEL_EMULATED"

// Run runs body in new namespaces. The loopback device is up, and /run,
// /etc/cni and /var/lib/cni, if they exist, are private. Run fails the test if
// the user is not root. It calls t.Parallel, which the test must not call
// itself.
func Run(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(answering) == t.Name() { // this process was started by NewFaults
		if err := answer(); err != nil {
			t.Fatalf("answer for system calls: %v", err)
		}
		return
	}
	if os.Getenv(inside) == t.Name() { // this process was started below
		setUp(t)
		body(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test creates network namespaces: run it as root")
	}
	if os.Getenv(emulated) != "" {
		t.Skip("no emulator runs this test")
	}
	t.Parallel()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1", "-test.timeout=15m")
	if testing.CoverMode() != "" {
		cmd.Args = append(cmd.Args, "-test.coverprofile="+filepath.Join(t.TempDir(), "cover"))
	}
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	t.Logf("output in the namespaces:\n%s", out)
	if err != nil {
		t.Fatalf("the test failed in its namespaces: %v", err)
	}
}

// setUp makes mounts and the loopback device of the new namespaces.
func setUp(t *testing.T) {
	t.Helper()
	must := func(what string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("make mounts private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must("mount /proc", unix.Mount("proc", "/proc", "proc", 0, ""))
	// As on a machine. The doctor tells from it that no processes of this network are hidden.
	must("name process 1", os.WriteFile("/proc/1/comm", []byte("systemd"), 0))
	for _, dir := range []string{"/run", "/etc/cni", "/var/lib/cni"} {
		if _, err := os.Stat(dir); err == nil {
			must("mount "+dir, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		}
	}
	must("mount /sys", unix.Mount("sysfs", "/sys", "sysfs", 0, ""))
	lo, err := netlink.LinkByName("lo")
	must("find lo", err)
	must("set lo up", netlink.LinkSetUp(lo))
}
