package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Namespaces are the namespaces (net, mnt and so on, see kinds) of one machine or pod. Its
// methods run commands, access files and open sockets there. The zero Namespaces are those
// of this process.
type Namespaces struct {
	files []*os.File // one for each of kinds, in that order
	From  netip.Addr // source address of pings; invalid: the kernel chooses
}

// kinds are the types of namespaces, in the order in which they are entered: mnt is
// the last. WithNet and callers of Files rely on net being the first.
var kinds = []string{"net", "uts", "ipc", "pid", "cgroup", "mnt"}

func openNamespaces(pid int) (Namespaces, error) {
	var ns Namespaces
	for _, kind := range kinds {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return Namespaces{}, errors.Join(err, ns.close())
		}
		ns.files = append(ns.files, f)
	}
	return ns, nil
}

// NamespacesOf returns Namespaces for open namespace files (see Files), and
// takes ownership of them.
func NamespacesOf(files []*os.File) Namespaces { return Namespaces{files: files} }

// Files returns the open namespace files, which ns still owns. The first is that of
// the network.
func (ns Namespaces) Files() []*os.File { return ns.files }

// WithNet returns ns with another network namespace. It owns f and shares the
// other files.
func (ns Namespaces) WithNet(f *os.File) Namespaces {
	return Namespaces{files: append([]*os.File{f}, ns.files[1:]...)}
}

func (ns Namespaces) close() error {
	var errs []error
	for _, f := range ns.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Do calls f on a thread that has entered the namespaces, and returns the error of f.
// Files and sockets that f opens and processes that f starts belong to these
// namespaces, also after Do has returned. Goroutines that f starts do not: they run
// on other threads. A call takes some ten microseconds. Do may be called by several
// goroutines at once.
func (ns Namespaces) Do(f func() error) error {
	done := make(chan error, 1)
	go ns.run(f, done)
	return <-done
}

// run implements Do in a goroutine of its own, and sends the error of f to
// done.
func (ns Namespaces) run(f func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the main thread cannot end: wait while another runs f
		defer runtime.UnlockOSThread()
		result := make(chan error)
		go ns.run(f, result)
		done <- <-result
		return
	}
	// The thread is never unlocked, so it ends with this goroutine, and no
	// other goroutine runs in the namespaces. A test that fails in f ends this
	// goroutine (runtime.Goexit): then the following error remains.
	err := errors.New("the function did not return")
	defer func() { done <- err }()
	if err = ns.enter(); err == nil {
		err = f()
	}
}

// enter moves the current thread into the namespaces.
func (ns Namespaces) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // without this, setns fails for the mount namespace
		return fmt.Errorf("unshare working directory: %w", err)
	}
	for _, f := range ns.files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil { // 0: a namespace of any kind
			return fmt.Errorf("enter namespace %s: %w", f.Name(), err)
		}
	}
	return nil
}

// Start starts cmd in the namespaces, with a minimal environment before that of
// cmd. The caller must call cmd.Wait.
func (ns Namespaces) Start(cmd *exec.Cmd) error {
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM")},
		cmd.Env...)
	return ns.Do(cmd.Start)
}

// Run runs a command and returns its output (stdout and stderr). It returns an error,
// with the command and the last line of the output, also if the exit status is not 0.
func (ns Namespaces) Run(ctx context.Context, command ...string) (string, error) {
	return ns.RunWith(ctx, nil, command...)
}

// RunWith is like Run, with a standard input.
func (ns Namespaces) RunWith(ctx context.Context, stdin io.Reader, command ...string) (string, error) {
	// Not a pipe, because a process that the command leaves behind would keep it open; not a file with a name, because a
	// kill could leave it, and because tests compare directories.
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("memory for the output of %s: %w", command[0], err)
	}
	out := os.NewFile(uintptr(fd), "output")
	defer out.Close()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	if err = ns.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	text, readErr := io.ReadAll(io.NewSectionReader(out, 0, math.MaxInt64))
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, LastLine(string(text)))
	}
	return string(text), errors.Join(err, readErr)
}

// LastLine returns the last line of a text that is not empty.
func LastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// ReadFile reads a file as seen in the namespaces.
func (ns Namespaces) ReadFile(path string) (data []byte, err error) {
	err = ns.Do(func() error {
		data, err = os.ReadFile(path)
		return err
	})
	return data, err
}

// WriteFile creates a file with mode 0644, or overwrites it.
func (ns Namespaces) WriteFile(path, text string) error {
	return ns.Do(func() error { return os.WriteFile(path, []byte(text), 0o644) })
}

// Dial connects from the namespaces. addr must be an IP address and a port,
// because names are not resolved.
func (ns Namespaces) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = ns.Do(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Listen opens a listening socket in the namespaces.
func (ns Namespaces) Listen(network, addr string) (l net.Listener, err error) {
	err = ns.Do(func() error {
		l, err = net.Listen(network, addr)
		return err
	})
	return l, err
}

// Get sends an HTTP GET request from the namespaces, and returns the status and
// up to 1 MiB of the body.
func (ns Namespaces) Get(ctx context.Context, url string) (int, string, error) {
	return get(ctx, url, ns.Dial)
}

// GetUnix is like Get, for a server at a unix socket. The host in url means
// nothing.
func (ns Namespaces) GetUnix(ctx context.Context, socket, url string) (int, string, error) {
	return get(ctx, url, func(ctx context.Context, _, _ string) (net.Conn, error) { return ns.Dial(ctx, "unix", socket) })
}

// get is Get over connections made by dial.
func get(ctx context.Context, url string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(body), err
}
