package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// process identifies a process.
type process struct {
	pid   int
	name  string
	start string // in clock ticks: differs for another process with the same PID
	ended bool   // a zombie, which its parent has not reaped yet
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

// descendants returns the processes below pid, each after its parent.
func descendants(t *testing.T, pid int) (below []process) {
	t.Helper()
	children := map[int][]process{}
	for _, pid := range pids(t) {
		if p, parent, err := readProcess(pid); err == nil { // otherwise it has just ended
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
	entries, err := os.ReadDir("/proc") // of the test's own PID namespace
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

// openNamespaces opens the namespaces of the processes, except for those of this
// process, and returns a function that closes them. The kernel gives the inode
// number of a removed namespace to the next one, which may belong to another lab.
// While a namespace is open here, its number cannot stand for another.
func openNamespaces(t *testing.T, processes []process) (names map[string]bool, closeAll func()) {
	t.Helper()
	names = map[string]bool{}
	var opened []*os.File
	closeAll = func() {
		for _, f := range opened {
			f.Close()
		}
	}
	for _, kind := range kinds {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", p.pid, kind))
			if err != nil {
				continue // the process has just ended
			}
			name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			if name == own || names[name] {
				f.Close()
				continue
			}
			names[name] = true
			opened = append(opened, f)
		}
	}
	return names, closeAll
}

// remains returns the processes that still run, and everything that still holds
// one of the namespaces: a process in it, an open file of a process other than
// this one, or a mount.
func remains(t *testing.T, below []process, spaces map[string]bool) (left []string) {
	t.Helper()
	for _, pid := range pids(t) {
		p, _, err := readProcess(pid)
		if err != nil || p.ended || pid == os.Getpid() { // a zombie still has its PID namespace
			continue
		}
		if slices.Contains(below, p) {
			left = append(left, fmt.Sprint(p))
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
				left = append(left, f[3]+" mounted for "+p.name)
			}
		}
	}
	return left
}

var changing = regexp.MustCompile(`"(valid_life_time|preferred_life_time)":\d+|\[\d+:\d+\]|(?m)^#.*$`)

// hostState returns the network state of the host as text, by command.
func hostState(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, command := range []string{"ip -j addr", "ip -j link", "ip -j route show table all",
		"ip -6 -j route show table all", "ip -j rule",
		"ip -j neigh show nud permanent", "ip netns list", "iptables-save", "ip6tables-save", "nft list ruleset"} { // of the test's own
		out, err := exec.Command("sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; "+command).Output()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		state[command] = changing.ReplaceAllString(string(out), "")
	}
	var sysctls strings.Builder
	err := filepath.WalkDir("/proc/sys/net", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, "_count") {
			return nil // a counter, or the entry has just been removed
		}
		value, _ := os.ReadFile(path) // some are write-only
		fmt.Fprintf(&sysctls, "%s=%s", path, value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	state["sysctls"] = sysctls.String()
	tmp, err := os.ReadDir(os.TempDir()) // the test's own
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

// wineServers returns the names of the directories in which the wineservers among
// the processes have their sockets. They contain the numbers of the Wine prefix's
// device and inode, so that no two prefixes have the same.
func wineServers(t *testing.T, processes []process) (names []string) {
	t.Helper()
	for _, p := range processes {
		if !strings.HasPrefix(p.name, "wineserver") {
			continue
		}
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid)) // a wineserver works in it
		if err != nil || !strings.HasPrefix(filepath.Base(path), "server-") {
			continue // it starts, and finds that there is one already
		}
		names = append(names, filepath.Base(path))
	}
	return names
}
