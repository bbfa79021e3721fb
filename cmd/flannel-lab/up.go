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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// up starts serve in a session of its own and waits until it answers. serve
// keeps running after up returns.
func up(ctx context.Context, args []string) error {
	if err := machine.CheckRoot(); err != nil {
		return err
	}
	if c, err := net.Dial("unix", socket()); err == nil {
		c.Close()
		return errors.New("a lab is running already: see flannel-lab status, or end it with flannel-lab down")
	}
	_ = os.Remove(socket()) // left by a lab that was killed
	cmd, stderr, err := startServer(args)
	if err != nil {
		return err
	}
	// Two ends are waited for: serve answers, or it ends. In the second case the
	// connection breaks, so ask returns an error; the reason is on stderr.
	ended := make(chan error, 1)
	go func() {
		_, _ = io.Copy(os.Stderr, stderr) // until one of both processes ends
		ended <- cmd.Wait()
	}()
	ready := make(chan error, 1)
	go func() { ready <- ask([]string{"status"}) }() // serve answers when the lab is ready
	select {
	case err := <-ready:
		if err == nil {
			fmt.Println("\nTry: flannel-lab exec pod1 -- ping pod2 · flannel-lab exec node1 -- ip route · flannel-lab down")
			return nil
		}
		<-ended
		return errors.New("the lab did not start")
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-ended
		return errors.Join(ctx.Err(), os.Remove(socket()))
	}
}

// startServer starts serve, and returns the command and its stderr, a pipe. serve
// must not inherit our stderr: our caller may wait until every writer of it has
// ended. The socket is listened on here, so that ask can connect at once; its mode
// lets only root use it.
func startServer(args []string) (*exec.Cmd, io.Reader, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket()})
	if err != nil {
		return nil, nil, err
	}
	listener.SetUnlinkOnClose(false) // the path stays: serve has a copy of the socket
	defer listener.Close()
	if err := os.Chmod(socket(), 0o600); err != nil {
		return nil, nil, err
	}
	file, err := listener.File()
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	cmd := machine.Command(append([]string{"serve"}, args...)...)
	machine.HandOn(cmd, file)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.SysProcAttr.Setsid = true // Ctrl-C in this terminal must not end the lab
	return cmd, stderr, cmd.Start()
}

// call sends a request to the running lab and returns its reply. The caller
// owns the files, which are namespaces.
func call(request []string) (reply, []*os.File, error) {
	var r reply
	conn, err := net.Dial("unix", socket())
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return r, nil, errNoLab
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
		return r, nil, fmt.Errorf("the lab did not answer: %w", err)
	}
	rest, err := io.ReadAll(conn)
	if err != nil {
		return r, nil, err
	}
	if err := json.Unmarshal(append(buf[:n], rest...), &r); err != nil {
		return r, nil, fmt.Errorf("the lab did not answer: %w", err)
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
// lab takes, for up until it has started.
func ask(request []string) error {
	r, _, err := call(request)
	fmt.Print(r.Text)
	return err
}

// execute runs a command in a node, a pod or infra as a child of this process,
// so that a terminal works as usual. It returns the exit status as a shell does:
// 127 if the command cannot be started, 128 and the signal if one has ended it.
func execute(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("exec needs a place: flannel-lab exec NODE|POD|infra [-- COMMAND…]")
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
	_, files, err := call([]string{"enter", args[0]})
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
	cmd.Env = []string{"PS1=" + args[0] + "# "}
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

// down ends the lab and waits until everything of it is removed.
func down() error {
	if _, _, err := call([]string{"down"}); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket()); errors.Is(err, os.ErrNotExist) { // serve removes it last
			return nil
		}
	}
	return errors.New("the lab did not end within 10 seconds")
}
