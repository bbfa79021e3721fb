package probe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/doctor"
)

// processes returns all visible processes but this one. A kernel thread or a
// process that has ended has no command line and is omitted.
// An error may come with those that could be read.
func processes() (all []process, unread error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		raw, err := commandLine(filepath.Join("/proc", e.Name()))
		if err != nil { // it goes on with the others
			unread = fmt.Errorf("read the arguments of a process: %w", err)
		}
		if len(raw) == 0 {
			continue
		}
		args := strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
		all = append(all, process{pid: pid, name: filepath.Base(args[0]), args: args})
	}
	return all, unread
}

// hiddenProcesses returns an error if /proc may lack processes of the host, as in a container
// with a PID namespace of its own. It lacks none if process 2 is the first thread of the
// kernel, which only the initial namespace has. A node may be a container (kind), with
// systemd as process 1. The name init is no sign: the process that a runtime starts in a
// container to reap others may have it. name returns a process's name; "": unknown.
func hiddenProcesses(name func(pid int) string) error {
	first := name(1)
	if first == "systemd" || name(2) == "kthreadd" {
		return nil
	}
	return fmt.Errorf("processes of the host may be hidden: process 1 is %q; run this as root on the host, or in a pod with hostPID", first)
}

// commOf returns the name of a process; "": it cannot be read.
func commOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
}

// commandLine returns the command line of the process with this directory in /proc.
// During execve, the command line is empty, but the link to the program exists, which
// kernel threads and ended processes do not have. A process that has erased its
// arguments looks the same for as long as it runs, so commandLine waits for 100 ms at
// most, much longer than execve takes. It returns an error if the process may not be read.
func commandLine(dir string) ([]byte, error) {
	for range 100 {
		raw, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if ended(err) {
			return nil, nil
		}
		if err != nil || len(raw) > 0 {
			return raw, err
		}
		if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil {
			return nil, nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil, nil // the process has erased its arguments
}

// ended reports whether an error of a file of a process means that the process has ended.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// daemons returns the daemons of flanneld and flannel in this network
// namespace, and those of a namespace that cannot be read, with the reason.
// commands are the names of flanneld's commands, such as doctor: a process with
// one of them among its arguments is no daemon.
func daemons(commands []string) (daemons []doctor.Process, err error) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("find this network namespace: %w", err)
	}
	all, err := processes()
	for _, p := range all {
		if !p.isDaemon(commands) {
			continue
		}
		// A flanneld in another network namespace, such as a node that runs in a
		// container (kind), has nothing to do with this host's network.
		dir := fmt.Sprintf("/proc/%d", p.pid)
		other, unread := os.Readlink(dir + "/ns/net")
		switch {
		case unread == nil && other == own:
			daemons = append(daemons, p.withoutSecrets())
		case unread != nil && !ended(unread):
			unknown := p.withoutSecrets()
			unknown.WhyNot = fmt.Sprintf("find its network namespace: %v", unread)
			daemons = append(daemons, unknown)
		}
	}
	// Between fork and execve, a child of a daemon has the daemon's arguments.
	found := slices.Clone(daemons)
	return slices.DeleteFunc(daemons, func(child doctor.Process) bool {
		parent := parentOf(child.PID)
		return slices.ContainsFunc(found, func(d doctor.Process) bool { return d.PID == parent && slices.Equal(d.Args, child.Args) })
	}), err
}

// parentOf returns the PID of a process's parent; 0: the process has ended.
func parentOf(pid int) (parent int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "PPid:"); found {
			parent, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return parent
}

// managers reads the state files of NetworkManager and systemd-networkd, which
// say whether a device is managed. They remain when the programs end.
// An error, of a running one or because one may run unseen, may come with what could be read.
func managers() (found []doctor.LinkManager, unread error) {
	all, unread := processes()
	running := map[string]bool{}
	for _, p := range all {
		running[p.name] = true
	}
	list, err := devices()
	if err != nil {
		return nil, err
	}
	nm := doctor.LinkManager{Name: "NetworkManager", Running: running["NetworkManager"]}
	networkd := doctor.LinkManager{Name: "systemd-networkd", Running: running["systemd-networkd"]}
	// Both write one file for each device, named after its index. They create the directories
	// when they start; a container may not have them.
	const nmDir, networkdDir = "/run/NetworkManager/devices", "/run/systemd/netif/links"
	if _, err := os.Stat(nmDir); nm.Running && err != nil {
		unread = fmt.Errorf("read the state of devices: %w", err)
	}
	if _, err := os.Stat(networkdDir); networkd.Running && err != nil {
		unread = fmt.Errorf("read the state of devices: %w", err)
	}
	for _, d := range list {
		ofNM, err1 := stateFile(fmt.Sprintf("%s/%d", nmDir, d.Index))
		ofNetworkd, err2 := stateFile(fmt.Sprintf("%s/%d", networkdDir, d.Index))
		if nm.Running && err1 != nil {
			unread = err1
		}
		if networkd.Running && err2 != nil {
			unread = err2
		}
		if ofNM["managed"] == "true" {
			nm.Manages = append(nm.Manages, d.Name)
		}
		if admin := ofNetworkd["ADMIN_STATE"]; admin != "" && admin != "unmanaged" {
			networkd.Manages = append(networkd.Manages, d.Name)
		}
	}
	return []doctor.LinkManager{nm, networkd}, cmp.Or(unread, hiddenProcesses(commOf))
}

// stateFile reads a file with lines of name=value. If it does not exist, there are no
// values.
func stateFile(path string) (map[string]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the state of a device: %w", err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found {
			values[name] = value
		}
	}
	return values, nil
}
