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

// The program starts itself again in other roles, told by this variable (none: nothing has happened yet).
const (
	roleVar    = "FLANNEL_LAB_ROLE"
	roleInit   = "init"   // process 1 of the lab's PID namespace
	roleInside = "inside" // the program itself, below it
	roleHold   = "hold"   // process 1 of a machine: holds its namespaces
)

// Roles are further ones, by name: what the program does in them.
type Roles map[string]func() error

// InRole is this program in another role.
func InRole(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{roleVar + "=" + role}
	return cmd
}

// inside tells that this process is below the lab's process 1. It is set once, by Init.
var inside bool

// Inside reports whether Init was called: else the machine's own network would be touched.
func Inside() bool { return inside }

// Continue must be called first in a program that does not always call Init. Where this process was started by the
// lab to be part of it, it does that part; otherwise it returns at once.
func Continue(roles Roles) {
	role := os.Getenv(roleVar)
	switch role {
	case roleInit:
		os.Exit(initMain())
	case roleHold:
		os.Exit(holdMain())
	case roleInside:
		inside = true
		_ = os.Unsetenv(roleVar) // children are not to take it for theirs
	}
	if do := roles[role]; do != nil {
		if err := do(); err != nil {
			os.Exit(fail(err))
		}
		os.Exit(0)
	}
}

// Init must be called first in main or TestMain. It returns in a process that runs in namespaces of the lab; the
// process that called it waits for that one, hands signals on, and exits with its status.
// If the caller dies, so does the lab.
func Init(roles Roles) {
	Continue(roles)
	if inside {
		return
	}
	cmd := Command(os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The signal comes when the parent *thread* ends: keep this one.
	runtime.LockOSThread()
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	os.Exit(outerMain(cmd))
}

// Ending returns the signals that end a program. SIGHUP is not one of them for a program that nohup(1) started: to ask
// for an ignored signal would take it back.
func Ending() []os.Signal {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) {
		signals = append(signals, unix.SIGHUP)
	}
	return signals
}

// Command is this program with other arguments, in the lab's namespaces once it calls Init, and in a session without
// a tie to this process, unless the caller adds one. Its ExtraFiles are handed through.
func Command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVar+"="+roleInit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	return cmd
}

// CheckRoot tells, in words for the user, that making namespaces takes root.
func CheckRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab makes network namespaces, which takes root: run it with sudo")
	}
	return nil
}

func outerMain(cmd *exec.Cmd) int {
	if err := CheckRoot(); err != nil {
		return fail(err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, Ending()...)
	if err := cmd.Start(); err != nil {
		return fail(fmt.Errorf("make namespaces (this takes root with CAP_SYS_ADMIN): %w", err))
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return fail(err)
	}
	return Status(cmd.ProcessState.Sys().(syscall.WaitStatus))
}

// initMain is process 1: it starts the program once more as its child, reaps, and ends with it.
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
	go func() {
		for s := range signals {
			_ = child.Signal(s)
		}
	}()
	for { // every orphan of the lab becomes a child of process 1
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fail(err)
		case pid == child.Pid:
			return Status(syscall.WaitStatus(ws))
		}
	}
}

// filesVar counts the descriptors after stderr that process 1 hands on.
const filesVar = "FLANNEL_LAB_FILES"

// HandOn gives cmd (of Command) further open files: descriptors 3, 4, … of the program inside.
func HandOn(cmd *exec.Cmd, files ...*os.File) {
	cmd.ExtraFiles = files
	cmd.Env = append(cmd.Env, filesVar+"="+strconv.Itoa(len(files)))
}

func extraFiles() int {
	n, _ := strconv.Atoi(os.Getenv(filesVar))
	return n
}

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

// Status is the exit status by which a shell would tell ws.
func Status(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "flannel-lab:", strings.TrimSpace(err.Error()))
	return 1
}
