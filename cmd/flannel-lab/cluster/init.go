package cluster

import (
	"crypto/md5"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/machine"
)

// Roles of this program: process 1 of a node before and after it is in its
// cgroup namespace. Node.boot starts roleJoin, which becomes roleNode. The arguments of
// both are the name of the node and that of the cluster's control group.
const (
	roleJoin = "cluster-join"
	roleNode = "cluster-node"
)

var roles = machine.Roles{roleJoin: joinMain, roleNode: nodeMain}

// Init must be called first in main or TestMain: see machine.Init.
func Init() { machine.Init(roles) }

// Continue must be called first in a program that does not always call Init:
// see machine.Continue.
func Continue() { machine.Continue(roles) }

// joinMain is roleJoin. The root of a new cgroup namespace is the group of the thread that
// creates the namespace, and only this thread is in it. So joinMain keeps its thread, and
// executes the program again on it: then the whole process is in the namespace.
func joinMain() error {
	runtime.LockOSThread()
	node, group := os.Args[1], os.Args[2]
	if err := join(group, node); err != nil {
		fmt.Println(err) // to machine.Boot
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		fmt.Println(err) // to machine.Boot
		return err
	}
	next := machine.InRole(roleNode, os.Args[1:]...)
	return syscall.Exec(next.Path, next.Args, next.Env) // returns only an error
}

// nodeMain is roleNode. It sets the node up and stays as its process 1. It returns only
// after an error.
func nodeMain() error {
	name := os.Args[1]
	return machine.Hold(func() error {
		for _, step := range []func() error{
			func() error { return machine.SetUp(name) },
			showGroups,
			func() error { return mountDisk(diskOf(name)) },
			func() error { return identify(name) },
			func() error { return hideSysctls(diskOf(name)) },
			setSysctls,
			// kubelet passes mounts on to pods.
			func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// diskOf returns the directory with the files of a node that a reboot keeps.
func diskOf(name string) string { return filepath.Join(base, name) }

// onDisk are the directories of a node that are on its disk. The others are those of the
// host (read and written by all nodes), or are empty after each boot: see machine.SetUp.
var onDisk = []string{"/etc/cni", "/opt", "/var/log", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet"}

// mountDisk mounts the directories of a node's disk where programs expect them.
func mountDisk(disk string) error {
	for _, dir := range onDisk {
		if to, err := os.Readlink(dir); err == nil && to != "" { // machine.SetUp's link to the host's directory
			if err := os.Remove(dir); err != nil {
				return err
			}
		}
		from := filepath.Join(disk, dir)
		if err := errors.Join(os.MkdirAll(from, 0o755), os.MkdirAll(dir, 0o755)); err != nil {
			return err
		}
		if err := unix.Mount(from, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the node's %s: %w", dir, err)
		}
	}
	return os.MkdirAll("/etc/cni/net.d", 0o755)
}

// identify gives the node a boot ID, which is another after each boot, and a machine ID of
// its own, which is the same after each boot.
func identify(name string) error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	const bootID = "/proc/sys/kernel/random/boot_id"
	if err := errors.Join(os.WriteFile("/run/boot_id", id, 0o444),
		unix.Mount("/run/boot_id", bootID, "", unix.MS_BIND, "")); err != nil {
		return fmt.Errorf("replace %s: %w", bootID, err)
	}
	if err := os.Remove("/etc/machine-id"); err != nil && !errors.Is(err, os.ErrNotExist) { // a link to that of the machine
		return err
	}
	return os.WriteFile("/etc/machine-id", fmt.Appendf(nil, "%x\n", md5.Sum([]byte(name))), 0o444)
}

// ofTheMachine are sysctls that belong to no namespace, so that all nodes and the host
// share them, with the values that kubelet wants.
var ofTheMachine = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0",
	"kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// hideSysctls mounts files over the sysctls that kubelet would change for the whole host:
// kubelet finds the values that it wants there.
func hideSysctls(disk string) error {
	for name, value := range ofTheMachine {
		file, sysctl := filepath.Join(disk, "sysctl", name), filepath.Join("/proc/sys", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(value+"\n"), 0o644)); err != nil {
			return err
		}
		err := unix.Mount(file, sysctl, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, unix.ENOENT) { // not in this kernel
			return fmt.Errorf("replace %s: %w", sysctl, err)
		}
	}
	return nil
}

// setSysctls sets what an installer of Kubernetes sets.
func setSysctls() error {
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		err := os.WriteFile(filepath.Join("/proc/sys", name), []byte("1"), 0o644)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
