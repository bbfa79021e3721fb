package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// base is the tmpfs with all files of the cluster: the nodes' disks, and the mounted
// control groups. The tmpfs hides a directory that every machine has, in the mount
// namespaces of the cluster only.
const base = "/dev/shm"

// groupPrefix begins the names of a cluster's control groups.
const groupPrefix = "flannel-lab-"

// servicesGroup is the group, below that of a node, of process 1, containerd,
// kubelet and kube-proxy. cgroup v2 allows no process in a group whose
// controllers are passed on to groups below, as kubelet does for its pods.
const servicesGroup = "services"

// hierarchy is a hierarchy of control groups, mounted below base. cgroup v1 has one for
// each controller or set of controllers, cgroup v2 has one for all. Control groups end
// with no namespace, unlike everything else of a cluster: Close and Sweep remove them.
//
//	cgroup v1                                 cgroup v2
//	cpu      flannel-lab-1234/node1/services  flannel-lab-1234/node1/services
//	                               /kubepods                        /kubepods
//	memory   flannel-lab-1234/node1/services
//	…
type hierarchy struct {
	name string // as in /proc/self/cgroup: "cpu,cpuacct", "name=systemd"; "" for cgroup v2
	dir  string // where it is mounted
}

// hierarchies returns the hierarchies in which the nodes have groups, at least one. A
// machine with both versions has the controllers in v1, so v2 is left out there.
func hierarchies() (all []hierarchy, err error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		// "4:memory:/path" for v1, "0::/path" for v2.
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[1] != "" {
			all = append(all, hierarchy{fields[1], filepath.Join(base, "cgroup", strings.TrimPrefix(fields[1], "name="))})
		}
	}
	if all == nil {
		all = []hierarchy{{"", filepath.Join(base, "cgroup", "unified")}}
	}
	return all, nil
}

// mount mounts the hierarchy on a directory, which it creates. What is visible
// there is what the cgroup namespace of the caller contains.
func (h hierarchy) mount(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	kind := "cgroup"
	if h.name == "" {
		kind = "cgroup2"
	}
	if err := unix.Mount("cgroup", dir, kind, 0, h.name); err != nil {
		return fmt.Errorf("mount control groups %s: %w", h.name, err)
	}
	return nil
}

// mountGroups mounts all hierarchies below base, removes the groups of clusters
// that were killed, and creates a group for this one. The open file is its
// directory in the first hierarchy, which is locked for as long as the cluster
// runs: by the lock, others know that it was not killed.
func mountGroups() (group *os.File, err error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		if err := h.mount(h.dir); err != nil {
			return nil, err
		}
	}
	former, err := filepath.Glob(filepath.Join(all[0].dir, groupPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range former {
		f, err := lock(dir)
		if err != nil {
			continue // of a cluster that runs
		}
		err = removeGroups(filepath.Base(dir))
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	for { // again if another cluster that starts now has removed the group before it was locked
		dir, err := os.MkdirTemp(all[0].dir, groupPrefix)
		if err != nil {
			return nil, err
		}
		f, err := lock(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(dir); err == nil {
			return f, nil
		}
		f.Close()
	}
}

// lock opens a directory and locks it until the file is closed. The error is EWOULDBLOCK
// if another process has it locked.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// removeGroups removes a group in all hierarchies, the first one last, because
// mountGroups looks there. The group is that of a cluster, or of a node of it.
func removeGroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range slices.Backward(all) {
		errs = append(errs, removeGroup(filepath.Join(h.dir, name)))
	}
	return errors.Join(errs...)
}

// removeGroup removes a group and those below it. It waits up to a second for each to
// have no process any more. A group that cannot be removed even then stays, without an
// error.
func removeGroup(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // err is that of a group that has just been removed
	})
	for _, group := range slices.Backward(dirs) {
		for range 100 {
			if err := unix.Rmdir(group); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return err
}

// join moves this process into the group cluster/node of each hierarchy, which it creates
// if necessary.
func join(cluster, node string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := h.dir
		for _, name := range []string{cluster, node} {
			if h.name == "" {
				passOn(dir)
			}
			parent := dir
			dir = filepath.Join(dir, name)
			if err := makeGroup(parent, dir); err != nil {
				return err
			}
		}
		if err := enterGroup(dir); err != nil {
			return err
		}
	}
	return nil
}

// makeGroup creates a group. With cgroup v1, a new group of the controller
// cpuset has neither processors nor memory.
func makeGroup(parent, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil || strings.TrimSpace(string(value)) == "" {
			continue // another controller, or cgroup v2
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// enterGroup moves this process into a group.
func enterGroup(dir string) error {
	// 0 is the process that writes.
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("enter control group: %w", err)
	}
	return nil
}

// passOn lets the groups below a group of cgroup v2 use its controllers. They are written
// one by one, because one that is refused must not keep the others back. Errors are
// ignored: checkControllers finds what is missing.
func passOn(dir string) {
	controllers, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for name := range strings.FieldsSeq(string(controllers)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0o644)
	}
}

// checkControllers returns an error if kubelet would miss a controller of
// cgroup v2 in this group.
func checkControllers(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, name := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(controllers)), name) {
			return fmt.Errorf("cgroup v2: the controller %s is not delegated to this process: run the cluster outside of a "+
				"container, or in one whose first group has no processes", name)
		}
	}
	return nil
}

// showGroups runs in a node, which is in a cgroup namespace of its own. It mounts
// the node's groups where containerd and kubelet expect those of a machine, and
// moves process 1 into the group of the services.
func showGroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	const top = "/sys/fs/cgroup"
	if all[0].name == "" {
		if err := all[0].mount(top); err != nil {
			return err
		}
		if err := checkControllers(top); err != nil {
			return err
		}
		defer passOn(top) // afterwards: v2 refuses it while process 1 is in this group
		return moveToServices(top)
	}
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", top, err)
	}
	for _, h := range all {
		dir := filepath.Join(top, filepath.Base(h.dir))
		if err := h.mount(dir); err != nil {
			return err
		}
		if err := moveToServices(dir); err != nil {
			return err
		}
		for name := range strings.SplitSeq(h.name, ",") { // cpu → cpu,cpuacct
			if name != h.name {
				if err := os.Symlink(filepath.Base(dir), filepath.Join(top, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// moveToServices moves this process into the group of the services below dir.
func moveToServices(dir string) error {
	services := filepath.Join(dir, servicesGroup)
	if err := makeGroup(dir, services); err != nil {
		return err
	}
	return enterGroup(services)
}
