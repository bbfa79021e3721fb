package charon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// Start starts charon, and before that writes its configuration file, which exists as long
// as the process may run. The caller has found that no charon listens on Socket. One of ours that has been running for
// longer than limit has lost its socket, or does not listen in time: it is ended, and its keys stay in the kernel. Start
// does not wait until charon listens, which can take seconds. program is what it has started; "": one that was started
// before may still begin to listen. state returns what the process has printed, and if it has ended, the reason. After
// an error, or without program, state is nil. The process is in a session of its own and does not end with this one, so
// that a restart of flanneld keeps its security associations. It inherits no files but that of its output, and of the
// environment only PATH.
func Start(config string, limit time.Duration) (program string, state func() (output string, ended error), err error) {
	if starting, err := endDeaf(config, limit); starting || err != nil {
		return "", nil, err
	}
	// Sets program, to the path of the first one that exists.
	i := slices.IndexFunc(programs, func(name string) bool { program, err = exec.LookPath(name); return err == nil })
	if i < 0 {
		return "", nil, errNotInstalled
	}
	if err := tryPorts(); err != nil {
		return "", nil, fmt.Errorf("%w (%w)", errPorts, err)
	}
	if _, err := file.Put(config, []byte(configuration()), 0o600); err != nil {
		return "", nil, err
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
		return "", nil, err
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
	}, nil
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

// textOf returns the text in a file of outputFile; "": there is none, or f is nil.
func textOf(f *os.File) string {
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

// mark is the variable of the environment by which Started recognizes the process. charon reads
// its configuration from the file in it.
func mark(config string) string { return "STRONGSWAN_CONF=" + config }

// Started returns the process that Start has started with this configuration file, in
// this or an earlier run, if the client is connected to it; 0: it is another's.
func (c *Client) Started(config string) int {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { // an error leaves pid 0, which has no environment
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && int(peer.Uid) == os.Geteuid() {
			pid = int(peer.Pid)
		}
	})
	if !marked(pid, config) {
		return 0
	}
	return pid
}

// marked reports whether a process has the variable by which Started recognizes it. Every
// user can give it to a process.
func marked(pid int, config string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return string(v) == mark(config) })
}

// endDeaf reports whether a daemon that Start has started with this configuration file began less than limit ago
// (starting). If none did, it ends those that run, which do not listen on Socket: they would keep the ports of IKE.
func endDeaf(config string, limit time.Duration) (starting bool, err error) {
	all := running(config)
	for _, runs := range all {
		if runs < limit {
			return true, nil
		}
	}
	for pid := range all {
		if e := end(pid, config, unix.SIGKILL, stopWait); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("end the charon that does not listen on %s: %w", Socket, e))
		}
	}
	return false, err
}

// running returns the daemons of this user in this network namespace that Start has started with this configuration
// file, by PID, and for how long they have been running. Where this process sees those of other containers, the
// same path may be another file for them.
func running(config string) map[int]time.Duration {
	all := map[int]time.Duration{}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return all
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !marked(pid, config) || !ofThisUser(pid) || !shares(pid, filepath.Dir(config)) || !shares(pid, filepath.Dir(Socket)) {
			continue
		}
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || !slices.ContainsFunc(programs, func(name string) bool { return filepath.Base(name) == filepath.Base(program) }) {
			continue
		}
		other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil || other != own {
			continue
		}
		if runs, err := age(pid); err == nil {
			all[pid] = runs
		}
	}
	return all
}

// shares reports whether a path leads a process, which may have another root, to the same directory as this process.
func shares(pid int, dir string) bool {
	dir, err := filepath.EvalSymlinks(dir) // Stat would follow absolute links from the root of this process
	if err != nil {
		return false
	}
	own, err := os.Stat(dir)
	its, err2 := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, dir))
	return err == nil && err2 == nil && os.SameFile(own, its)
}

// ofThisUser reports whether a process has the user of this one, as its real, effective,
// saved and filesystem user. The owner of its files in /proc is root for one that may not
// be traced.
func ofThisUser(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			own := strconv.Itoa(os.Geteuid())
			return !slices.ContainsFunc(strings.Fields(ids), func(id string) bool { return id != own })
		}
	}
	return false
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

// MayRun reports whether a daemon that Start has started with this configuration file
// may run: the file exists, until Stop removes it.
func MayRun(config string) bool {
	_, err := os.Stat(config)
	return err == nil
}

// Stop ends what Start has started with this configuration file: the daemon that the client is connected to,
// and those that do not listen. It removes the file. ikeStore.stop calls it. client is nil if
// no daemon listens. SIGTERM makes the daemon delete its security associations, which stay with
// SIGKILL. A daemon that does not end within stopWait is killed: it would keep the ports of IKE.
func Stop(client *Client, config string, sig syscall.Signal) error {
	pids := running(config)
	if client != nil {
		if pid := client.Started(config); pid != 0 {
			pids[pid] = 0
		}
	}
	for pid := range pids {
		if err := end(pid, config, sig, stopWait); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end charon: %w", err)
		}
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
// Before Linux 5.3, end does not wait.
func end(pid int, config string, sig syscall.Signal, limit time.Duration) (err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.3
		return unix.Kill(pid, sig)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if !marked(pid, config) {
		return unix.ESRCH
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return err
	}
	wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	deadline := time.Now().Add(limit)
	for left := limit; left > 0; left = time.Until(deadline) { // with a negative timeout, Poll waits for ever
		n, err := unix.Poll(wait, int(left.Milliseconds())+1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) { // n > 0: the process has ended, and err is nil
			return err
		}
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
