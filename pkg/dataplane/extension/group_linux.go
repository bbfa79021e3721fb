// This file makes sure that no command survives this process: runGroup marks a running
// command by an open file, and endFormer kills what a former process has left. On
// Windows, group_windows.go has the same functions.

package extension

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// marks creates the files by which the next process finds the commands that still run
// after this process was killed.
type marks struct {
	path string // the files begin with this
	log  *slog.Logger

	mu     sync.Mutex
	failed bool // the last file could not be created, which was logged
}

// runGroup runs a command. When its context ends, the command is killed together
// with the processes of its group.
//
// While the command runs, it has a file of marks open. If this process is killed, the
// file stays, and by it the next process finds what still runs. A PID in a file could
// be that of another process by then, and the kernel's signal for the death of a parent
// would not reach the command's children.
func runGroup(cmd *exec.Cmd, m *marks) error {
	if file := m.open(); file != nil {
		defer file.Close()           //nolint:errcheck // nothing was written
		defer os.Remove(file.Name()) //nolint:errcheck // what this process starts is not found by it
		cmd.ExtraFiles = []*os.File{file}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if cmd.Process != nil { // it was started
		reap(cmd.Process.Pid)
	}
	return err
}

// reap makes sure that the processes which a command has left in its group do not stay as zombies, if they have become
// children of this process because it is process 1 of a container. It does not wait for those that still run: a
// goroutine does, which blocks a thread until they have ended. While there are any, the kernel does not use the number of
// the group again.
func reap(group int) {
	if wait(group, syscall.WNOHANG) {
		return
	}
	go wait(group, 0) // no options: until the last one has ended
}

// wait reaps children in a process group, and reports whether none is left.
func wait(group, options int) bool {
	for {
		switch pid, err := syscall.Wait4(-group, nil, options, nil); {
		case errors.Is(err, syscall.EINTR): // again
		case err != nil: // ECHILD
			return true
		case pid == 0: // only with WNOHANG: there are some that still run
			return false
		}
	}
}

// open creates the file of a command that is to run. If it cannot, the directory being
// read-only or full, it returns nil, and the command runs without: that peers are
// connected matters more than what happens to commands when this process is killed.
func (m *marks) open() *os.File {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir := filepath.Dir(m.path)
	err := os.MkdirAll(dir, 0o755)
	var file *os.File
	if err == nil {
		file, err = os.CreateTemp(dir, filepath.Base(m.path)+"*")
	}
	if err != nil && !m.failed {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err // without the random name
		}
		m.log.Warn("could not create the file of a running command; if flanneld is killed, its commands will not be ended",
			"cause", causeFormer, "directory", dir, "error", err)
	}
	m.failed = err != nil
	return file
}

// endFormer kills commands that a former process has left, and reports whether none
// is left. It waits for them for as long as a pass may take. Ensure calls it in each pass
// until it returns true, or time is up.
func (d *Dataplane) endFormer(ctx context.Context) bool {
	files, _ := filepath.Glob(escaped(d.marks.path) + "*") // there is no error but that of a malformed pattern
	if len(files) == 0 {
		return true
	}
	for end := time.Now().Add(passPatient); ; time.Sleep(10 * time.Millisecond) {
		left := killHolders(files)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) || ctx.Err() != nil {
			d.opts.Log.Warn("commands of the former flanneld do not end", "cause", causeFormer, "pids", left)
			return false
		}
	}
	d.opts.Log.Info("ended the commands that the former flanneld had left", "cause", causeFormer, "commands", len(files))
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			d.opts.Log.Warn("could not remove the file of a command that has ended", "cause", causeFormer, "error", err)
		}
	}
	return true
}

// escaped returns a path as a pattern of filepath.Glob.
func escaped(path string) (pattern string) {
	for _, r := range path {
		if r == '*' || r == '?' || r == '[' || r == '\\' {
			pattern += `\`
		}
		pattern += string(r)
	}
	return pattern
}

// killHolders kills the processes that have one of the files open, with their process
// groups, and returns their PIDs.
func killHolders(files []string) (pids []int) {
	marks := map[string]os.FileInfo{} // by the name of the file
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			marks[filepath.Base(file)] = info
		}
	}
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range open {
		target, err := os.Readlink(fd)
		mark, named := marks[filepath.Base(target)]
		if err != nil || !named {
			continue
		}
		// The name alone may be that of another file.
		if info, err := os.Stat(fd); err != nil || !os.SameFile(info, mark) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(fd))))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if group, err := syscall.Getpgid(pid); err == nil && group != syscall.Getpgrp() {
			_ = syscall.Kill(-group, syscall.SIGKILL)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		pids = append(pids, pid)
	}
	return pids
}
