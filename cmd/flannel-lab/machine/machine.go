package machine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Machine is a set of namespaces (network, mounts, PIDs, host name, IPC) and
// the process 1 that keeps them alive. Its methods, except for PowerOff, may be called by
// several goroutines at once.
type Machine struct {
	Namespaces
	Name string
	hold *exec.Cmd // process 1
}

// New creates a machine whose only device is loopback. End it with PowerOff.
func New(name string) (*Machine, error) { return Boot(name, InRole(roleHold, name)) }

// Boot creates a machine whose process 1 is cmd, a command of InRole, and returns
// when the machine is set up. The function of the role must call Hold. After an error
// the machine is nil, and process 1 has ended.
func Boot(name string, cmd *exec.Cmd) (*Machine, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setpgid:    true, // Ctrl-C on the terminal must not reach it
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("create namespaces for %s: %w", name, err)
	}
	m := &Machine{Name: name, hold: cmd}
	if answer, err := bufio.NewReader(out).ReadString('\n'); answer != "ready\n" { // written by Hold
		err = fmt.Errorf("set up %s: %s (%v)", name, strings.TrimSpace(answer), err)
		return nil, errors.Join(err, m.PowerOff())
	}
	if m.Namespaces, err = openNamespaces(cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, m.PowerOff())
	}
	return m, nil
}

// PID returns the PID of process 1 in the PID namespace of this process.
func (m *Machine) PID() int { return m.hold.Process.Pid }

// PowerOff kills process 1, and with it every process of the machine.
func (m *Machine) PowerOff() error {
	_ = m.hold.Process.Kill() // fails only if it has ended
	_ = m.hold.Wait()         // always the error "signal: killed"
	return m.Namespaces.close()
}

// holdMain is roleHold, process 1 of a machine. Its argument is the machine's name.
func holdMain() int {
	_ = Hold(func() error { return SetUp(os.Args[1]) }) // it returns only after an error, which it has written
	return 1
}

// Hold is what process 1 of a machine does for as long as the machine exists.
// It calls setUp, writes "ready" or the error of setUp to its stdout, which Boot
// reads, and returns only after an error.
func Hold(setUp func() error) error {
	if err := setUp(); err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	signal.Ignore(unix.SIGCHLD) // lets the kernel reap orphans
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
	}
}

// SetUp runs in process 1 of a machine. It sets the host name, the mounts, the name of
// the process and lo.
func SetUp(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := privateMounts(); err != nil {
		return err
	}
	// The doctor tells from the name that no processes of the machine are hidden from it.
	if err := os.WriteFile("/proc/1/comm", []byte("systemd"), 0); err != nil {
		return fmt.Errorf("name process 1: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := privateDirs(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// privateDirs mounts a /run, /etc and /var/lib of the machine's own. /etc and
// /var/lib contain links to the host's entries, so that programs find alternatives,
// certificates and so on, except for the entries in own, which hold network
// state.
func privateDirs() error {
	// The links lead to these places, at which the host's directories stay visible.
	aside := map[string]string{"/etc": "/run/.machine/etc", "/var/lib": "/run/.machine/lib"}
	own := map[string][]string{"/etc": {"cni", "kube-flannel", "hosts", "hostname", "resolv.conf"},
		"/var/lib": {"cni", "etcd"}}
	held := map[string]*os.File{}
	for dir := range aside { // before /run is hidden by a mount: /etc may be a link to it
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		held[dir] = f
	}
	if err := tmpfs("/run"); err != nil {
		return err
	}
	for dir, to := range aside {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", held[dir].Fd()), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
		if err := tmpfs(dir); err != nil {
			return err
		}
		if err := linkAll(to, dir, own[dir]); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/flannel", "/run/lock", "/etc/cni/net.d", "/etc/kube-flannel", "/var/lib/cni",
		"/var/lib/etcd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// No name server, because programs that look up names would wait for its
	// timeout.
	return os.WriteFile("/etc/resolv.conf", nil, 0o644)
}

// tmpfs mounts an empty file system in memory, which hides what dir contains.
func tmpfs(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// linkAll creates in dir a link to every entry of from, except those in own. It
// copies an entry that is a link itself.
func linkAll(from, dir string, own []string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if slices.Contains(own, e.Name()) {
			continue
		}
		target := filepath.Join(from, e.Name())
		if to, err := os.Readlink(target); err == nil {
			target = to // copy the link: a relative target is resolved from dir, as before
		}
		if err := os.Symlink(target, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
