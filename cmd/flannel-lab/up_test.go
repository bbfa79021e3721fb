package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cli runs flannel-lab as a user does.
type cli struct {
	t      *testing.T
	socket string
}

func (c cli) run(want int, args ...string) string {
	c.t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "FLANNEL_LAB_SOCKET="+c.socket, "FLANNEL_LAB_CLUSTER_SOCKET="+c.socket)
	out, err := cmd.CombinedOutput()
	c.t.Logf("flannel-lab %s\n%s", strings.Join(args, " "), out)
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		c.t.Fatalf("exit status is %d, want %d", got, want)
	}
	return string(out)
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in\n%s", word, text)
		}
	}
}

func TestUpAndDown(t *testing.T) {
	c := cli{t, filepath.Join(t.TempDir(), "socket")}
	contains(t, c.run(1, "status"), "flannel-lab up")
	up := []string{"up", "--nodes", "2", "--flanneld", os.Getenv("LAB_FLANNELD")}
	contains(t, c.run(0, up...), "node1", "node2", "pod1", "pod2", "ready", `"PublicIP"`)
	t.Cleanup(func() { // in case the test fails before
		cmd := exec.Command("/proc/self/exe", "down")
		cmd.Env = append(os.Environ(), asCommand+"=1", "FLANNEL_LAB_SOCKET="+c.socket)
		_ = cmd.Run()
	})
	contains(t, c.run(1, up...), "running already")
	contains(t, c.run(0, "exec", "node2", "--", "hostname"), "node2")
	contains(t, c.run(3, "exec", "pod1", "--", "sh", "-c", "ip -br addr; exit 3"), "eth0@")
	contains(t, c.run(1, "exec", "nowhere", "--", "true"), "nowhere", "node1 to node2")
	c.run(0, "exec", "pod1", "--", "ping", "-c1", "-w60", "pod2")
	contains(t, c.run(0, "pod", "add", "node1", "more"), "more")
	contains(t, c.run(1, "pod", "add", "node2", "more"), "already")
	contains(t, c.run(1, "pod", "add", "node2", "../x"), "pod name")
	c.run(0, "exec", "more", "--", "ping", "-c1", "-w60", "pod2")
	c.run(0, "pod", "del", "more")
	if pods := c.run(0, "pod", "list"); strings.Contains(pods, "more") {
		t.Error("a deleted pod is listed")
	}
	c.run(0, "flanneld", "kill", "node1")
	contains(t, c.run(0, "status"), "not running")
	c.run(0, "flanneld", "start", "node1")
	c.run(0, "down")
	contains(t, c.run(1, "status"), "flannel-lab up")
}

// Every step of the demo checks itself.
func TestDemos(t *testing.T) {
	c := cli{t, filepath.Join(t.TempDir(), "socket")}
	contains(t, c.run(0, "demo", "--kube", "--ipv6", "--nodes", "2"), "kube-apiserver v1.")
	contains(t, c.run(0, "demo", "--windows", "1"), "RemoteSubnetRoute", "win-overlay.exe")
	contains(t, c.run(0, "demo", "--windows", "1", "--backend", "host-gw"), "win-bridge.exe")
	contains(t, c.run(2, "demo", "--windows", "2"), "Linux")
}
