//go:build cluster

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
)

// TestClusterUpAndDown starts a cluster in the background, ends it as a user does
// and by SIGKILL, and searches for what it has left on the machine. As in
// TestNothingIsLeft, the network of the machine is one of the test's own.
func TestClusterUpAndDown(t *testing.T) { nstest.Run(t, testClusterUpAndDown) }

func testClusterUpAndDown(t *testing.T) {
	c := cli{t, filepath.Join(t.TempDir(), "socket")}
	before := machineState(t)
	t.Cleanup(func() { c.run(0, "cluster", "down") })
	contains(t, c.run(1, "cluster", "status"), "flannel-lab cluster up")
	up := []string{"cluster", "up", "--nodes", "1", "--bare"}
	contains(t, c.run(0, up...), "node1", "NotReady", "containerd://2")
	contains(t, c.run(1, up...), "running already")
	contains(t, c.run(0, "cluster", "exec", "node1", "--", "sh", "-c", "hostname; ctr images list -q"), "node1", "flanneld:dev")
	contains(t, c.run(0, "cluster", "kubectl", "get", "pods", "-A"), "No resources")
	c.run(0, "cluster", "kill", "node1", "kubelet")
	c.run(0, "cluster", "start", "node1", "kubelet")
	contains(t, c.run(1, "cluster", "start", "node1", "kubelet"), "already")
	c.run(0, "cluster", "reboot", "node1")
	_, group := runningCluster(t, c.socket)
	c.run(0, "cluster", "down")
	unchanged(t, "the command down", before, group)

	c.run(0, up...)
	pid, group := runningCluster(t, c.socket)
	kill(t, pid)
	if groupsNamed(t, group) == nil {
		t.Fatalf("no control group %s: what down would have to remove is somewhere else", group)
	}
	contains(t, c.run(0, "cluster", "down"), "no cluster is running")
	unchanged(t, "SIGKILL and the command down", before, group)
}

// runningCluster returns the first process of the cluster with that socket, and the name of
// the cluster's control groups.
func runningCluster(t *testing.T, socket string) (pid int, group string) {
	t.Helper()
	for _, pid := range pids(t) {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if !strings.HasSuffix(string(command), "--bare\x00") || !strings.Contains(string(environment), socket) {
			continue
		}
		for _, p := range descendants(t, pid) {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
			if group := regexp.MustCompile(`flannel-lab-\d+`).FindString(string(text)); group != "" {
				return pid, group
			}
		}
	}
	t.Fatal("no process of the cluster is in a control group of its own")
	return 0, ""
}

// kill kills the first process of a cluster, and waits for the end of the others.
func kill(t *testing.T, pid int) {
	t.Helper()
	below := descendants(t, pid)
	spaces, closeAll := openNamespaces(t, below)
	defer closeAll()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	untilGone(t, below, spaces)
}

// groupsNamed returns the hierarchies of control groups that have a group of that
// name. It mounts them, because the namespaces of the test have none at the usual
// place.
func groupsNamed(t *testing.T, name string) (found []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for line := range strings.Lines(string(text)) {
		controllers := strings.Split(line, ":")[1]
		kind := "cgroup"
		if controllers == "" {
			kind = "cgroup2"
		}
		if err := unix.Mount("cgroup", dir, kind, 0, controllers); err != nil {
			t.Fatalf("mount control groups %s: %v", controllers, err)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			found = append(found, line)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// machineState returns what a cluster could change on the machine: beside what a
// lab could, sysctls that belong to no namespace, and files.
func machineState(t *testing.T) map[string]string {
	t.Helper()
	state := hostState(t)
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/netfilter/nf_conntrack_max", "kernel/random/boot_id"} {
		value, err := os.ReadFile("/proc/sys/" + name)
		state[name] = fmt.Sprint(string(value), err)
	}
	for _, pattern := range []string{"/*", "/etc/*", "/opt/*", "/opt/*/*", "/var/*", "/var/lib/*", "/var/log/*", "/usr/libexec/*", "/etc/cni/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		state[pattern] = strings.Join(names, " ")
	}
	return state
}

// unchanged fails if the machine is not as it was before, or has control groups of
// the cluster. The kernel removes the
// last namespaces a moment after their processes.
func unchanged(t *testing.T, after string, before map[string]string, group string) {
	t.Helper()
	eventually.Nil(t, "the machine is unchanged after "+after, func() error {
		changed := groupsNamed(t, group)
		for name, text := range machineState(t) {
			if before[name] != text {
				changed = append(changed, fmt.Sprintf("%s\nfrom %s\nto   %s", name, before[name], text))
			}
		}
		if changed == nil {
			return nil
		}
		return errors.New(strings.Join(changed, "\n"))
	})
}
