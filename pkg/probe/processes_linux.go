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

// processes calls each with the PID and the command line of every process that is to be seen.
func processes(each func(pid int, args []string)) error {
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
			continue // it has ended, or is the kernel's
		}
		each(pid, strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00"))
	}
	return nil
}

// daemons are the processes of our name in this network namespace that are no commands.
func daemons(commands []string) ([]doctor.Process, error) {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("find our network namespace: %w", err)
	}
	var all []doctor.Process
	err = processes(func(pid int, args []string) {
		name := filepath.Base(args[0])
		if !isDaemon(name, args[1:], commands) || pid == os.Getpid() {
			return
		}
		if there, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && there == here {
			shown, _ := redact.Args(args[1:])
			all = append(all, doctor.Process{PID: pid, Name: name, Args: shown})
		}
	})
	return all, err
}

// managers reads the files in which NetworkManager and systemd-networkd keep what they manage, one for each device.
// Both leave them behind when they end.
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

// stateFile reads lines of name=value; no file is an empty one.
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
