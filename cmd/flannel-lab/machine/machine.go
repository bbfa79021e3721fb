package machine

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Machine is a set of namespaces (network, mounts, PIDs, host name) with a process 1 that holds them.
type Machine struct {
	Namespaces
	Name string
	hold *exec.Cmd
}

// New makes a machine with only a loopback device.
func New(name string) (*Machine, error) {
	cmd := InRole(roleHold, name)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setpgid:    true, // a Ctrl-C on the terminal is for the lab, not for each machine
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make namespaces for %s: %w", name, err)
	}
	m := &Machine{Name: name, hold: cmd}
	said, err := bufio.NewReader(out).ReadString('\n')
	if said != "ready\n" {
		return nil, fmt.Errorf("set up %s: %s (%v)", name, strings.TrimSpace(said), err)
	}
	m.Namespaces, err = openNamespaces(cmd.Process.Pid)
	return m, err
}

// PowerOff is the power switch: everything in the machine ends.
func (m *Machine) PowerOff() error {
	_ = m.hold.Process.Kill()
	_ = m.hold.Wait() // "killed" is what we want to hear
	return m.Namespaces.close()
}

// holdMain is process 1 of a machine.
func holdMain() int {
	if err := setUpMachine(os.Args[1]); err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	signal.Ignore(unix.SIGCHLD) // the kernel reaps what becomes our child
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
	}
}

func setUpMachine(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := privateMounts(); err != nil {
		return err
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

// privateDirs gives the machine its own /run, /etc and /var/lib. Of the last two everything but what the network
// keeps there shows through as links, so programs find their alternatives, certificates and so on.
func privateDirs() error {
	aside := map[string]string{"/etc": "/run/.machine/etc", "/var/lib": "/run/.machine/lib"}
	own := map[string][]string{"/etc": {"cni", "kube-flannel", "hosts", "hostname", "resolv.conf"}, "/var/lib": {"cni", "etcd"}}
	held := map[string]*os.File{}
	for dir := range aside { // /run is about to be covered, and may be where /etc/… leads
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
	for _, dir := range []string{"/run/flannel", "/run/lock", "/etc/cni/net.d", "/etc/kube-flannel", "/var/lib/cni", "/var/lib/etcd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// No name server: programs that look addresses up would wait for it.
	return os.WriteFile("/etc/resolv.conf", nil, 0o644)
}

func tmpfs(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// linkAll fills dir with links to the entries of from, except those in own.
func linkAll(from, dir string, own []string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	skip := map[string]bool{}
	for _, name := range own {
		skip[name] = true
	}
	for _, e := range entries {
		if skip[e.Name()] {
			continue
		}
		target := filepath.Join(from, e.Name())
		if to, err := os.Readlink(target); err == nil {
			target = to // a relative link must be read from where it was
		}
		if err := os.Symlink(target, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
