package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"flannel/pkg/doctor"
	"flannel/pkg/redact"
)

// processes calls fn with the PID and the command line of each visible process.
// A kernel thread has no command line and is omitted.
func processes(fn func(pid int, args []string)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(raw) == 0 {
			continue // it has ended, or is a kernel thread
		}
		fn(pid, strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00"))
	}
	return nil
}

// daemons returns the daemons of flanneld and flannel in this network
// namespace.
func daemons(commands []string) ([]doctor.Process, error) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("find this network namespace: %w", err)
	}
	var list []doctor.Process
	err = processes(func(pid int, args []string) {
		name := filepath.Base(args[0])
		if !isDaemon(name, args[1:], commands) || pid == os.Getpid() {
			return
		}
		if other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && other == own {
			shown, _ := redact.Args(args[1:]) // without secrets
			list = append(list, doctor.Process{PID: pid, Name: name, Args: shown})
		}
	})
	return list, err
}

// managers reads the state files of NetworkManager and systemd-networkd, which
// say whether a device is managed. They remain when the programs end.
func managers() ([]doctor.LinkManager, error) {
	running := map[string]bool{}
	if err := processes(func(_ int, args []string) { running[filepath.Base(args[0])] = true }); err != nil {
		return nil, err
	}
	list, err := devices()
	if err != nil {
		return nil, err
	}
	nm := doctor.LinkManager{Name: "NetworkManager", Running: running["NetworkManager"]}
	networkd := doctor.LinkManager{Name: "systemd-networkd", Running: running["systemd-networkd"]}
	for _, d := range list {
		if state := stateFile(fmt.Sprintf("/run/NetworkManager/devices/%d", d.Index)); state["managed"] == "true" {
			nm.Manages = append(nm.Manages, d.Name)
		}
		state := stateFile(fmt.Sprintf("/run/systemd/netif/links/%d", d.Index))
		if admin := state["ADMIN_STATE"]; admin != "" && admin != "unmanaged" {
			networkd.Manages = append(networkd.Manages, d.Name)
		}
	}
	return []doctor.LinkManager{nm, networkd}, nil
}

// stateFile reads a file with lines of name=value. If it cannot be read, there
// are no values.
func stateFile(path string) map[string]string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	values := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found {
			values[name] = value
		}
	}
	return values
}
