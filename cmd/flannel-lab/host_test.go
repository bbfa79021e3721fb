package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// These tests look at a lab from outside, so they run it as a command of its own: the test binary, told by this
// variable, which holds the path of a stand-in for flanneld.
const asLab = "FLANNEL_LAB_TEST_STANDIN"

// asCommand makes the test binary flannel-lab.
const asCommand = "FLANNEL_LAB_TEST_COMMAND"

func TestMain(m *testing.M) {
	lab.Continue()
	if os.Getenv(asCommand) != "" {
		os.Exit(run(os.Args[1:]))
	}
	if standIn := os.Getenv(asLab); standIn != "" {
		lab.Init()
		if err := holdLab(context.Background(), standIn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holdLab runs a lab with all that one can have until stdin ends.
func holdLab(ctx context.Context, standIn string) error {
	l, err := lab.New(ctx, lab.Options{Nodes: 2, Flanneld: standIn})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, n := range l.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
		_, err := lab.Until(ctx, 10*time.Second, func(ctx context.Context) error {
			_, err := n.AddPod(ctx, "pod")
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Println("up")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// standIn has what a daemon has: children, entries in the kernel, settings and files.
const standIn = `#!/bin/sh
ip link add flannel.1 type vxlan id 1 dstport 8472 dev eth0 && ip link set flannel.1 up
ip route add 10.5.99.0/24 via 10.5.99.0 dev flannel.1 onlink
iptables -t nat -A POSTROUTING -j MASQUERADE
nft add table ip flannel-ipv4
echo 1 >/proc/sys/net/ipv4/ip_forward
printf 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' >/run/flannel/subnet.env
sleep 1000 & trap '' TERM
wait
`

func labCommand(t *testing.T) *exec.Cmd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "flanneld")
	if err := os.WriteFile(path, []byte(standIn), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asLab+"="+path)
	return cmd
}

// TestNothingIsLeft runs a lab with nodes, etcd and (stand-ins for) daemons, ends it in different ways, and looks for
// processes and namespaces of it, and for changes of the machine's own network.
func TestNothingIsLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	for _, end := range []struct {
		name   string
		victim func(outer int, below []process) int // whom SIGKILL hits; 0: the lab ends by itself
	}{
		{"the lab ends by itself", func(int, []process) int { return 0 }},
		{"its caller is killed", func(outer int, _ []process) int { return outer }},
		{"its process 1 is killed", func(_ int, below []process) int { return below[0].pid }},
		{"the program is killed", func(_ int, below []process) int { return below[1].pid }},
	} {
		t.Run(end.name, func(t *testing.T) {
			before := hostState(t)
			cmd := labCommand(t)
			stdin, stdout := pipes(t, cmd)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "up\n" {
				t.Fatalf("the lab did not start: %q %v", line, err)
			}
			below := descendants(t, cmd.Process.Pid)
			spaces := namespacesOf(below)
			t.Logf("%d processes, %d namespaces", len(below), len(spaces))
			if len(below) < 6 || len(spaces) < 10 { // process 1, the program, infra, etcd, two nodes, their daemons
				t.Fatalf("this is no lab: %v", below)
			}
			if !slices.ContainsFunc(below, func(p process) bool { return p.name == "etcd" }) {
				t.Fatal("no etcd below the lab")
			}
			start := time.Now()
			if pid := end.victim(cmd.Process.Pid, below); pid != 0 {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			} else if err := stdin.Close(); err != nil {
				t.Fatal(err)
			}
			var left []string
			for time.Since(start) < 10*time.Second {
				if left = remains(t, below, spaces); len(left) == 0 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if len(left) > 0 {
				t.Fatalf("left after 10 s: %v", left)
			}
			t.Logf("gone after %v", time.Since(start))
			_ = cmd.Wait() // its status is that of the killed one
			after := hostState(t)
			for name, text := range before {
				if after[name] != text {
					t.Errorf("%s of the machine changed\nfrom %s\nto   %s", name, text, after[name])
				}
			}
		})
	}
}

func pipes(t *testing.T, cmd *exec.Cmd) (io.Closer, *os.File) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	return stdin, r
}

// process is a process that can be recognised.
type process struct {
	pid   int
	name  string
	start string // in clock ticks: tells another process of the same PID apart
	ended bool   // a zombie: whoever is its parent now has not looked yet
}

func readProcess(pid int) (p process, parent int, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, 0, err
	}
	open, shut := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[shut+1:]))
	parent, err = strconv.Atoi(fields[1])
	return process{pid, string(stat[open+1 : shut]), fields[19], fields[0] == "Z"}, parent, err
}

// descendants are the processes below pid, each after its parent.
func descendants(t *testing.T, pid int) (below []process) {
	t.Helper()
	children := map[int][]process{}
	for _, pid := range pids(t) {
		if p, parent, err := readProcess(pid); err == nil { // else it has just ended
			children[parent] = append(children[parent], p)
		}
	}
	for queue := children[pid]; len(queue) > 0; queue = queue[1:] {
		below = append(below, queue[0])
		queue = append(queue, children[queue[0].pid]...)
	}
	return below
}

func pids(t *testing.T) (all []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

var kinds = []string{"net", "mnt", "pid", "uts", "ipc"}

// namespacesOf are the namespaces of the processes but not of this one.
func namespacesOf(processes []process) map[string]bool {
	spaces := map[string]bool{}
	for _, kind := range kinds {
		for _, p := range processes {
			if name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.pid, kind)); err == nil {
				spaces[name] = true
			}
		}
		if own, err := os.Readlink("/proc/self/ns/" + kind); err == nil {
			delete(spaces, own)
		}
	}
	return spaces
}

// remains are the processes that still run, and whatever still holds one of the namespaces: a process in it, an open
// file, or a mount.
func remains(t *testing.T, below []process, spaces map[string]bool) (left []string) {
	t.Helper()
	for _, pid := range pids(t) {
		now, _, err := readProcess(pid)
		if err != nil || now.ended { // a zombie names its PID namespace still
			continue
		}
		if slices.Contains(below, now) {
			left = append(left, fmt.Sprint(now))
		}
		held, _ := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", pid))
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, path := range append(held, open...) {
			if name, err := os.Readlink(path); err == nil && spaces[name] {
				left = append(left, path+" "+name)
			}
		}
		mounts, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); len(f) > 3 && spaces[f[3]] { // the root of an nsfs mount is its namespace
				left = append(left, f[3]+" mounted for "+now.name)
			}
		}
	}
	return left
}

var changing = regexp.MustCompile(`"(valid_life_time|preferred_life_time)":\d+|\[\d+:\d+\]|(?m)^#.*$`)

// hostState is the machine's own network as text.
func hostState(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, command := range []string{"ip -j addr", "ip -j link", "ip -j route show table all", "ip -6 -j route show table all", "ip -j rule",
		"ip -j neigh show nud permanent", "ip netns list", "iptables-save", "ip6tables-save", "nft list ruleset"} {
		out, err := exec.Command("sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; "+command).Output()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		state[command] = changing.ReplaceAllString(string(out), "")
	}
	var sysctls strings.Builder
	err := filepath.WalkDir("/proc/sys/net", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, "_count") {
			return nil // counters; and what another hand has just removed
		}
		value, _ := os.ReadFile(path) // some can only be written
		fmt.Fprintf(&sysctls, "%s=%s", path, value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	state["sysctls"] = sysctls.String()
	tmp, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, e := range tmp {
		if strings.Contains(e.Name(), "flannel-lab") {
			ours = append(ours, e.Name())
		}
	}
	state["temporary files"] = fmt.Sprint(ours)
	return state
}
