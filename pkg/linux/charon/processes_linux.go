package charon

import (
	"bytes"
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
)

// mark is the variable of the environment by which a process of Start is recognized. charon reads
// its configuration from the file in it.
func mark(config string) string { return "STRONGSWAN_CONF=" + config }

// marked reports whether a process has the variable by which one of Start is recognized. Every
// user can give it to a process.
func marked(pid int, config string) (bool, error) {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	variables := strings.Split(string(environ), "\x00")
	return slices.Contains(variables, mark(config)), err
}

// errUnread is the error of a process that may be ours, and that this process cannot read.
func errUnread(pid int, config string, err error) error {
	return fmt.Errorf("cannot find out whether process %d is the charon that flanneld has started "+
		"(if it is, end it; if not, remove %s): %w", pid, config, err)
}

// add adds the error of one more process to err. The result is fs.ErrPermission only if all of them are: else it is the
// first other one.
func add(err, more error) error {
	switch {
	case err != nil && !errors.Is(err, fs.ErrPermission):
		return err
	case !errors.Is(more, fs.ErrPermission):
		return more
	}
	return errors.Join(err, more)
}

// hasEnded reports whether an error of a file of a process means that the process has ended.
func hasEnded(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// running returns the daemons of this user in this network namespace that Start has started with this configuration
// file, by PID, and for how long they have been running. The error (see add) names processes with charon's name that this
// process cannot read.
func running(config string) (all map[int]time.Duration, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	all = map[int]time.Duration{}
	for _, e := range entries {
		pid, e := strconv.Atoi(e.Name())
		if e != nil {
			continue
		}
		var runs time.Duration
		ours, e := isOurs(pid, config)
		if ours {
			runs, e = age(pid)
		}
		switch {
		case hasEnded(e): // or it has no such directory
		case e != nil:
			err = add(err, errUnread(pid, config, e))
		case ours:
			all[pid] = runs
		}
	}
	return all, err
}

// isOurs reports whether a process has charon's name, this user, our mark and our network namespace. Where this process
// sees those of other containers, the same path may be another file for them.
func isOurs(pid int, config string) (bool, error) {
	if ours, err := hasName(pid); !ours {
		return false, err
	}
	if ours, err := ofThisUser(pid); !ours {
		return false, err
	}
	if ours, err := marked(pid, config); !ours {
		return false, err
	}
	if same, err := shares(pid, filepath.Dir(config)); !same {
		return false, err
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return its == own, err
}

// hasName reports whether a process has the name of one of programs. In contrast to the path of the program, it stays
// when an upgrade of strongSwan replaces the file. Every process may read it, unless /proc or SELinux hides processes:
// then any could be charon, and those that may not be read are not taken for it.
func hasName(pid int) (bool, error) {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	name := strings.TrimSpace(string(comm))
	return slices.ContainsFunc(programs, func(program string) bool { return filepath.Base(program) == name }), err
}

// shares reports whether a path leads a process, which may have another root, to the same directory as this process.
func shares(pid int, dir string) (bool, error) {
	own, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	path := fmt.Sprintf("/proc/%d/root", pid)
	root, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	// Before Linux 5.6, in containers that forbid the call, and if a directory was renamed just now: links are followed
	// from the root of this process.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN) {
		its, err := os.Stat(path + "/" + dir)
		return os.SameFile(own, its), err
	}
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(fd), dir)
	its, err := f.Stat()
	return os.SameFile(own, its), errors.Join(err, f.Close())
}

// ofThisUser reports whether a process has the user of this one, as its real, effective,
// saved and filesystem user. The owner of its files in /proc is root for one that may not
// be traced.
func ofThisUser(pid int) (bool, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			own := strconv.Itoa(os.Geteuid())
			return !slices.ContainsFunc(strings.Fields(ids), func(id string) bool { return id != own }), nil
		}
	}
	return false, err
}

// age returns how long a process has been running. /proc/uptime is no help: lxcfs shows the
// time since the start of the container there, and stat that since the boot of the host.
func age(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	// The name, in parentheses, may contain blanks. The start is the 20th field after it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("process %d: unknown format of stat", pid)
	}
	start, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return 0, err
	}
	const tick = time.Second / 100 // on all systems, in /proc
	return time.Duration(now.Nano()) - time.Duration(start)*tick, nil
}
