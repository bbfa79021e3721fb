package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The program starts itself again in other roles. This variable names the role;
// it is unset in the process that the user started.
const (
	roleVar    = "FLANNEL_LAB_ROLE"
	roleInit   = "init"   // process 1 of the lab's PID namespace
	roleInside = "inside" // the program itself, a child of roleInit
	roleHold   = "hold"   // process 1 of a machine, which keeps its namespaces alive
)

// Roles maps the names of further roles, those of the packages that use this one, to
// their functions. The process exits when the function returns, with status 1 on an
// error.
type Roles map[string]func() error

// InRole returns a command that runs this program in a role of Roles. args are its
// os.Args[1:].
func InRole(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{roleVar + "=" + role}
	return cmd
}

// inside is set by Continue if this process is a descendant of roleInit.
var inside bool

// Inside reports whether this process runs in the namespaces of the lab, so
// that it cannot change the host's own network.
func Inside() bool { return inside }

// Continue must be called first in a program that does not always call Init. If
// this process was started for one of the roles, Continue runs it and does not
// return, except in roleInside. Otherwise it returns at once.
func Continue(roles Roles) {
	role := os.Getenv(roleVar)
	switch role {
	case roleInit:
		os.Exit(initMain())
	case roleHold:
		os.Exit(holdMain())
	case roleInside:
		inside = true
		_ = os.Unsetenv(roleVar) // or children would take the role
	}
	if do := roles[role]; do != nil {
		if err := do(); err != nil {
			os.Exit(fail(err))
		}
		os.Exit(0)
	}
}

// Init must be called first in main or TestMain. It runs the program again in
// new namespaces, where Init returns. The process that called Init first waits
// for it, forwards signals to it, and exits with its status. When the calling
// process dies, the kernel kills the lab.
func Init(roles Roles) {
	Continue(roles)
	if inside {
		return
	}
	cmd := Command(os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Pdeathsig is sent when the parent *thread* ends, so this thread must
	// stay. Of the new PID namespace, the death of its process 1 ends all others.
	runtime.LockOSThread()
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	os.Exit(outerMain(cmd))
}

// Ending returns the signals that end a program. SIGHUP is left out if it is
// ignored, as nohup(1) has it: signal.Notify would undo that.
func Ending() []os.Signal {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) {
		signals = append(signals, unix.SIGHUP)
	}
	return signals
}

// Command returns a command that runs this program with other arguments, in
// namespaces of its own: its process is roleInit, and in the program below it Init
// returns. The command does not end with this process, unless the caller sets
// Pdeathsig. HandOn passes open files to it.
func Command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVar+"="+roleInit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	return cmd
}

// CheckRoot returns an error for the user if the process is not root.
func CheckRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab creates network namespaces, which needs root: run it with sudo")
	}
	return nil
}

// outerMain runs cmd, forwards signals to it, and returns its exit status.
func outerMain(cmd *exec.Cmd) int {
	if err := CheckRoot(); err != nil {
		return fail(err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, Ending()...)
	if err := cmd.Start(); err != nil {
		return fail(fmt.Errorf("create namespaces (needs root with CAP_SYS_ADMIN): %w", err))
	}
	go func() { // until the process exits
		for s := range signals {
			_ = cmd.Process.Signal(s) // fails if it has just ended
		}
	}()
	err := cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return fail(err)
	}
	return Status(cmd.ProcessState.Sys().(syscall.WaitStatus))
}

// initMain is roleInit: it starts the program again as its child, reaps
// orphans, and exits with the status of the child.
func initMain() int {
	if err := privateMounts(); err != nil {
		return fail(err)
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	for fd := 3; fd < 3+extraFiles(); fd++ {
		files = append(files, os.NewFile(uintptr(fd), "inherited"))
	}
	_ = os.Setenv(roleVar, roleInside)
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: files, Env: os.Environ()})
	if err != nil {
		return fail(err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, Ending()...)
	go func() { // until the process exits
		for s := range signals {
			_ = child.Signal(s) // fails if it has just ended
		}
	}()
	for { // every orphan of the lab becomes a child of process 1
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR): // wait again
		case err != nil:
			return fail(err)
		case pid == child.Pid:
			return Status(syscall.WaitStatus(ws))
		}
	}
}

// filesVar holds the number of file descriptors after stderr that roleInit
// passes on.
const filesVar = "FLANNEL_LAB_FILES"

// HandOn passes open files to a cmd made by Command: they are file descriptors
// 3, 4, … of the program.
func HandOn(cmd *exec.Cmd, files ...*os.File) {
	cmd.ExtraFiles = files
	cmd.Env = append(cmd.Env, filesVar+"="+strconv.Itoa(len(files)))
}

func extraFiles() int {
	n, _ := strconv.Atoi(os.Getenv(filesVar)) // 0 without HandOn
	return n
}

// privateMounts keeps mounts of this namespace out of others, and mounts a
// /proc of its PID namespace.
func privateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return mountProc()
}

func mountProc() error {
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// Status returns the exit status as a shell reports it: 128 plus the signal
// number if a signal ended the process.
func Status(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// fail prints an error and returns exit status 1.
func fail(err error) int {
	fmt.Fprintln(os.Stderr, "flannel-lab:", strings.TrimSpace(err.Error()))
	return 1
}
