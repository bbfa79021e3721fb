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

// Namespaces is a place where commands run, files are read and sockets are opened: a machine's, or a pod's.
type Namespaces struct {
	files []*os.File // in the order in which they are entered
	From  netip.Addr // that pings come from; zero: the kernel chooses
}

// kinds are the namespaces of a process, mounts last: after it, paths are the place's own.
var kinds = []string{"net", "uts", "ipc", "pid", "mnt"}

func openNamespaces(pid int) (Namespaces, error) {
	var ns Namespaces
	for _, kind := range kinds {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return ns, errors.Join(err, ns.close())
		}
		ns.files = append(ns.files, f)
	}
	return ns, nil
}

// NamespacesOf makes a place of open namespace files (of Files); it owns them.
func NamespacesOf(files []*os.File) Namespaces { return Namespaces{files: files} }

// Files are the open namespace files, still owned by ns.
func (ns Namespaces) Files() []*os.File { return ns.files }

// WithNet is the same place with another network; it shares the other files.
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

// Do calls f on a thread that is in the place: files, sockets and processes that f itself opens or starts belong to
// it (and stay so); goroutines that f starts do not. It costs some ten microseconds.
func (ns Namespaces) Do(f func() error) error {
	done := make(chan error, 1)
	go ns.run(f, done)
	return <-done
}

func (ns Namespaces) run(f func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the main thread cannot end: keep it busy while another does the work
		defer runtime.UnlockOSThread()
		again := make(chan error)
		go ns.run(f, again)
		done <- <-again
		return
	}
	// The thread is not unlocked, so it ends with this goroutine and nobody else runs in the place.
	err := errors.New("the function did not return")
	defer func() { done <- err }()
	if err = ns.enter(); err == nil {
		err = f()
	}
}

func (ns Namespaces) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // else the kernel refuses the mount namespace
		return fmt.Errorf("unshare working directory: %w", err)
	}
	for _, f := range ns.files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("enter namespace %s: %w", f.Name(), err)
		}
	}
	return nil
}

// Start starts cmd in the place, with a plain environment. The caller waits for it.
func (ns Namespaces) Start(cmd *exec.Cmd) error {
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM")}, cmd.Env...)
	return ns.Do(cmd.Start)
}

// Run runs a command to its end and returns what it wrote. Its error tells the command and its last words.
func (ns Namespaces) Run(ctx context.Context, command ...string) (string, error) {
	return ns.RunWith(ctx, nil, command...)
}

// RunWith is Run with a standard input.
func (ns Namespaces) RunWith(ctx context.Context, stdin io.Reader, command ...string) (string, error) {
	// A file, not a pipe: a program that the command leaves behind keeps a pipe open.
	out, err := os.CreateTemp("", "flannel-lab-")
	if err != nil {
		return "", err
	}
	defer out.Close()
	if err := os.Remove(out.Name()); err != nil {
		return "", err
	}
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

// LastLine is the last line of a text that has something in it.
func LastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// ReadFile reads a file of the place.
func (ns Namespaces) ReadFile(path string) (data []byte, err error) {
	err = ns.Do(func() error {
		data, err = os.ReadFile(path)
		return err
	})
	return data, err
}

// WriteFile writes a file of the place.
func (ns Namespaces) WriteFile(path, text string) error {
	return ns.Do(func() error { return os.WriteFile(path, []byte(text), 0o644) })
}

// Dial connects from the place. addr is an IP address and a port: there are no names here.
func (ns Namespaces) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = ns.Do(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Listen listens in the place.
func (ns Namespaces) Listen(network, addr string) (l net.Listener, err error) {
	err = ns.Do(func() error {
		l, err = net.Listen(network, addr)
		return err
	})
	return l, err
}

// Get asks a server by HTTP from the place and returns the status and the body.
func (ns Namespaces) Get(ctx context.Context, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(body), err
}
