package charon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/file"
)

// programs are the names under which distributions install charon.
var programs = []string{"charon-systemd", "/usr/sbin/charon-systemd", "/usr/lib/ipsec/charon", "/usr/lib/strongswan/charon",
	"/usr/libexec/ipsec/charon", "/usr/libexec/strongswan/charon"}

// errNotInstalled is the error of a machine on which charon neither runs nor can be
// started.
var errNotInstalled = errors.New("strongSwan is not installed: install it (Debian: charon-systemd) and start its service, or let flanneld start its daemon")

// errPorts is the error of a machine on which charon cannot be started, since this
// process may not use the ports of IKE, or because another program has them. charon
// itself would share them with it, and take its packets.
var errPorts = errors.New("charon was not started, since the UDP ports 500 and 4500 are not available; " +
	"if another IKE daemon runs, it must be strongSwan's charon and listen on " + Socket)

// configuration is that of a daemon that Start starts. It does not depend on the
// configuration of the host, whose connections and scripts are not its business.
// Tunnels have no addresses, so charon needs no routes and no table for them, with a
// rule that would stay when it is killed. charon ignores plugins that do not exist.
func configuration() (text string) {
	for _, program := range []string{"charon", "charon-systemd"} {
		text += program + ` {
  install_routes = no
  routing_table = 0
  load = random nonce openssl gmp curve25519 aes sha1 sha2 hmac kdf drbg gcm ccm chapoly kernel-netlink socket-default vici
}
`
	}
	return text
}

// Start starts charon, and before that writes its configuration file, which exists as long as the process may run. The
// caller has found that no charon listens on Socket. One of ours that has been running for longer than limit has lost its
// socket, or does not listen in time: it is killed, and its keys stay in the kernel. killed holds the PIDs of those, also
// with an error. Start does not wait until charon listens, which can take seconds. program is what it has started; "": one
// that was started before may still begin to listen. state returns what the process has printed, and if it has ended, the
// reason. After an error, or without program, state is nil. The process is in a session of its own and does not end with
// this one, so that a restart of flanneld keeps its security associations. It inherits no files but that of its output,
// and of the environment only PATH.
func Start(config string, limit time.Duration) (
	program string, state func() (output string, ended error), killed []int, err error,
) {
	starting, killed, unread := endDeaf(config, limit)
	if starting || unread != nil && !errors.Is(unread, fs.ErrPermission) {
		return "", nil, killed, unread
	}
	// Sets program, to the path of the first one that exists.
	i := slices.IndexFunc(programs, func(name string) bool { program, err = exec.LookPath(name); return err == nil })
	if i < 0 {
		return "", nil, killed, errNotInstalled
	}
	if err := tryPorts(); err != nil {
		return "", nil, killed, errors.Join(fmt.Errorf("%w (%w)", errPorts, err), unread)
	}
	former := MayRun(config)
	if _, err := file.Put(config, []byte(configuration()), 0o600); err != nil {
		return "", nil, killed, err
	}
	cmd := exec.Command(program)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), mark(config)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	output, err := outputFile()
	if err == nil { // else its output is lost
		cmd.Stdout, cmd.Stderr = output, output
	}
	if err := cmd.Start(); err != nil {
		_ = output.Close()
		if !former { // else one that was started before may run
			err = errors.Join(err, os.Remove(config))
		}
		return "", nil, killed, err
	}
	type result struct {
		output string
		ended  error
	}
	results := make(chan result, 1)
	go func() {
		err := cmd.Wait() // also so that no zombie stays
		results <- result{textOf(output), fmt.Errorf("%s: %w", program, cmp.Or(err, errors.New("exit status 0")))}
		_ = output.Close()
	}()
	return program, func() (string, error) {
		text := textOf(output) // before the result, after which the file is closed
		select {
		case r := <-results:
			results <- r // for the next call
			return r.output, r.ended
		default:
			return text, nil
		}
	}, killed, nil
}

// outputSize is how much of a process' output is kept, in bytes.
const outputSize = 8 << 10

// outputFile returns a file in memory that keeps the first outputSize bytes of what a process prints; further writes to it
// fail. The process may outlive this one, after which a pipe would break, and a file would grow for ever.
func outputFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("charon", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "output of charon")
	err = f.Truncate(outputSize)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// textOf returns the text in a file of outputFile, which may be empty. Without a file, it says so.
func textOf(f *os.File) string {
	if f == nil {
		return "its output could not be kept"
	}
	text := make([]byte, outputSize)
	n, _ := f.ReadAt(text, 0) // what cannot be read is missing in a message
	text, _, _ = bytes.Cut(text[:n], []byte{0})
	return string(text)
}

// tryPorts returns an error if a port of IKE cannot be used. A process that was killed
// has them for a moment.
func tryPorts() (err error) {
	for began := time.Now(); time.Since(began) < time.Second; time.Sleep(20 * time.Millisecond) {
		err = errors.Join(tryPort(500), tryPort(4500))
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return err
}

// tryPort takes a port, and gives it back.
func tryPort(port int) error {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
	if err != nil {
		return err
	}
	return conn.Close()
}

// Started returns the process that Start has started with this configuration file, in this or an earlier run, if the
// client is connected to it; 0: it is another's. The error is that of one of this user that cannot be read or, in a
// container without the host's PIDs, cannot be seen.
func (c *Client) Started(config string) (pid int, err error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var unread error
	err = raw.Control(func(fd uintptr) { peer, unread = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := cmp.Or(err, unread); err != nil {
		return 0, err
	}
	if int(peer.Uid) != os.Geteuid() {
		return 0, nil
	}
	if pid = int(peer.Pid); pid == 0 {
		return 0, fmt.Errorf("cannot find out whether the charon that listens on %s, in another PID namespace, is the one that "+
			"flanneld has started (if it is, end it on the host; if not, remove %s)", Socket, config)
	}
	ours, err := marked(pid, config)
	if err != nil && !hasEnded(err) {
		return 0, errUnread(pid, config, fmt.Errorf("it listens on %s: %w", Socket, err))
	}
	if !ours {
		return 0, nil
	}
	return pid, nil
}

// endDeaf reports whether a daemon that Start has started with this configuration file began less than limit ago
// (starting). If none did, it kills those that run, which do not listen on Socket: they would keep the ports of IKE.
// A daemon that sees another directory for Socket may listen there, and is left alone. With fs.ErrPermission, there
// may be another that this process cannot read; Start finds by the ports whether it runs.
func endDeaf(config string, limit time.Duration) (starting bool, killed []int, err error) {
	all, err := running(config)
	for pid, runs := range all {
		same, e := shares(pid, filepath.Dir(Socket))
		switch {
		case hasEnded(e), e == nil && !same:
			delete(all, pid)
		case e != nil:
			err = add(err, errUnread(pid, config, e))
		case runs < limit:
			return true, nil, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return false, nil, err
	}
	for _, pid := range slices.Sorted(maps.Keys(all)) {
		switch e := end(pid, config, unix.SIGKILL, stopWait); {
		case e == nil:
			killed = append(killed, pid)
		case !errors.Is(e, unix.ESRCH):
			err = add(err, fmt.Errorf("end the charon that does not listen on %s: %w", Socket, e))
		}
	}
	return false, killed, err
}

// MayRun reports whether a daemon that Start has started with this configuration file
// may run: the file exists, until Stop removes it.
func MayRun(config string) bool {
	_, err := os.Stat(config)
	return !errors.Is(err, fs.ErrNotExist)
}

// Runs reports whether a daemon runs that Start has started with this configuration file, as far as this process can read
// that. In contrast to MayRun, it looks for the process.
func Runs(config string) bool {
	all, _ := running(config)
	return len(all) > 0
}

// Stop ends what Start has started with this configuration file: the daemon that listens on Socket, also if it does not
// answer, and those that do not listen. Then it removes the file. After an error, as when it cannot end or read one of
// them, the file stays, so that MayRun remains true and the next call tries again. ikeStore.stop calls it. SIGTERM makes
// the daemon delete its security associations, which stay with SIGKILL. A daemon that does not end within stopWait is
// killed: it would keep the ports of IKE.
func Stop(config string, sig syscall.Signal) error {
	all, err := running(config)
	pids := slices.Sorted(maps.Keys(all))
	client, e := Dial(Socket)
	switch {
	case e == nil:
		pid, e := client.Started(config)
		_ = client.Close()
		err = cmp.Or(err, e) // both may name the same process
		if pid != 0 && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	case !errors.Is(e, ErrNotRunning) && len(pids) == 0: // else one of pids does not accept connections
		err = cmp.Or(err, e)
	}
	for _, pid := range pids {
		if e := end(pid, config, sig, stopWait); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("end charon, process %d: %w", pid, e))
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(config); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// stopWait is how long a daemon may take to end, which usually takes a part of a second.
const stopWait = 10 * time.Second

// end sends a signal to a process that is marked for config, and waits until all of its threads have ended. One that
// has not after limit is killed. If it has ended before, the error is ESRCH, also if another process has its PID by now.
// Before Linux 5.3, and in containers that forbid pidfd_open, end looks for the process every 20 ms, and another process
// may get the PID just before a signal.
func end(pid int, config string, sig syscall.Signal, limit time.Duration) (err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	old := errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)
	if err != nil && !old {
		return err
	}
	if !old {
		defer func() { err = errors.Join(err, unix.Close(fd)) }()
	}
	ours, err := marked(pid, config)
	if err != nil && !hasEnded(err) {
		return err
	}
	if !ours {
		return unix.ESRCH
	}
	deadline := time.Now().Add(limit)
	if old {
		return endWithoutPidfd(pid, config, sig, deadline)
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return err
	}
	wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for left := limit; left > 0; left = time.Until(deadline) { // with a negative timeout, Poll waits for ever
		n, err := unix.Poll(wait, int(left.Milliseconds())+1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) { // n > 0: the process has ended, and err is nil
			return err
		}
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// endWithoutPidfd is end for a process that is marked, after it was looked for. One that has ended has no environment, and
// if it was not waited for yet, only the root of the machine may look.
func endWithoutPidfd(pid int, config string, sig syscall.Signal, deadline time.Time) error {
	if err := unix.Kill(pid, sig); err != nil {
		return err
	}
	for {
		ours, err := marked(pid, config)
		switch {
		case hasEnded(err), errors.Is(err, fs.ErrPermission), err == nil && !ours:
			return nil
		case err != nil:
			return err
		case time.Now().After(deadline):
			return unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
