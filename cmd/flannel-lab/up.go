package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// background is a lab or a cluster that another process of this program, its
// server, runs in the background. The methods here are those of a client: up starts the
// server, the others connect to its socket. The server's method is run, in serve.go.
type background struct {
	what    string   // "lab" or "cluster"
	command string   // what the commands up and down follow, for messages
	serve   []string // the command that runs the server
	socket  string   // path of the Unix socket on which the server listens
	hint    string   // what to try first
	env     []string // of a command of exec
}

// up starts the server in a session of its own and waits until it answers. The
// server keeps running after up returns.
func (b background) up(ctx context.Context, args []string) error {
	if err := machine.CheckRoot(); err != nil {
		return err
	}
	if c, err := net.Dial("unix", b.socket); err == nil {
		c.Close()
		return fmt.Errorf("a %s is running already: see %s status, or end it with %s down", b.what, b.command, b.command)
	}
	_ = os.Remove(b.socket) // left by a server that was killed
	cmd, stderr, err := b.startServer(args)
	if err != nil {
		return err
	}
	// Either the server answers, or it ends. In the second case the connection breaks, so
	// that ask returns an error; the reason is on stderr.
	ended := make(chan error, 1)
	go func() { // ends with the server, or with this process
		_, _ = io.Copy(os.Stderr, stderr) // until the server ends
		ended <- cmd.Wait()
	}()
	ready := make(chan error, 1)
	go func() { ready <- b.ask([]string{"status"}) }() // it answers when everything is ready
	select {
	case err := <-ready:
		if err == nil {
			fmt.Println("\nTry: " + b.hint + " · " + b.command + " down")
			return nil
		}
		<-ended // so that all of its stderr is printed
		return fmt.Errorf("the %s did not start", b.what)
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-ended
		return errors.Join(ctx.Err(), os.Remove(b.socket))
	}
}

// startServer starts the server, and returns the command and its stderr, a pipe. The
// server must not inherit our stderr: the program that called us may wait until every
// writer of our stderr has ended. This process listens on the socket and hands it on, so
// that ask can connect at once; the mode of the socket lets only root use it.
func (b background) startServer(args []string) (*exec.Cmd, io.Reader, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.socket})
	if err != nil {
		return nil, nil, err
	}
	listener.SetUnlinkOnClose(false) // the path stays: the server has a copy of the socket
	defer listener.Close()
	if err := os.Chmod(b.socket, 0o600); err != nil {
		return nil, nil, err
	}
	file, err := listener.File()
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	cmd := machine.Command(slices.Concat(b.serve, args)...)
	machine.HandOn(cmd, file)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.SysProcAttr.Setsid = true // Ctrl-C in this terminal must not end it
	return cmd, stderr, cmd.Start()
}

// call sends a request to the server and returns its reply. The error of a reply is
// returned as err. The caller owns the files, which are namespaces, in the order of
// machine.Namespaces.
func (b background) call(request []string) (reply, []*os.File, error) {
	var r reply
	conn, err := net.Dial("unix", b.socket)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) { // no socket, or that of a killed server
		return r, nil, notRunning{b}
	}
	if err != nil {
		return r, nil, err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return r, nil, err
	}
	// Control data comes with the first read only. 256 bytes are enough for the few
	// namespaces of a place.
	buf, oob := make([]byte, 64<<10), make([]byte, 256)
	n, oobn, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(buf, oob)
	if err != nil {
		return r, nil, fmt.Errorf("the %s did not answer: %w", b.what, err)
	}
	rest, err := io.ReadAll(conn)
	if err != nil {
		return r, nil, err
	}
	if err := json.Unmarshal(append(buf[:n], rest...), &r); err != nil {
		return r, nil, fmt.Errorf("the %s did not answer: %w", b.what, err)
	}
	if r.Error != "" {
		return r, nil, errors.New(r.Error)
	}
	files, err := received(oob[:oobn])
	return r, files, err
}

// received returns the open files in a control message.
func received(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "namespace"))
		}
	}
	return files, nil
}

// ask sends a request and prints the text of the reply. It waits for as long as the
// server takes: when up calls it, until everything has started.
func (b background) ask(request []string) error {
	r, _, err := b.call(request)
	fmt.Print(r.Text)
	return err
}

// execute runs a command in a node, a pod or infra as a child of this process,
// so that a terminal works as usual. It returns the exit status as a shell does:
// 127 if the command cannot be started, 128 and the signal if one has ended it.
func (b background) execute(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("exec needs a place: NODE, POD or infra [-- COMMAND…]")
	}
	if err := machine.CheckRoot(); err != nil {
		return 1, err
	}
	command := args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		command = []string{"sh"}
	}
	_, files, err := b.call([]string{"enter", args[0]})
	if err != nil {
		return 1, err
	}
	dir, err := lab.BinDir()
	if err != nil {
		return 1, err
	}
	lab.SetPath(dir)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append([]string{"PS1=" + args[0] + "# "}, b.env...) // the prompt of a shell
	if err := machine.NamespacesOf(files).Start(cmd); err != nil {
		return 127, err
	}
	err = cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		ws := exit.Sys().(syscall.WaitStatus)
		if ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return ws.ExitStatus(), nil
	}
	return 0, err
}

// end ends the server and waits until everything of it is removed.
func (b background) end() error {
	if _, _, err := b.call([]string{"down"}); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(b.socket); errors.Is(err, os.ErrNotExist) { // the server removes it last
			return nil
		}
	}
	return fmt.Errorf("the %s did not end within a minute", b.what)
}

// notRunning is the error of a request without a server.
type notRunning struct{ background }

func (e notRunning) Error() string {
	return fmt.Sprintf("no %s is running: start one with %s up", e.what, e.command)
}
