// Package probe reads the Snapshot of a node that package doctor checks, and writes it with
// other texts into a bundle for maintainers. It changes nothing else on the node. Everything
// is read in parallel and with a timeout. A Fact is a part of the Snapshot with a value, or
// with the reason why the value is not known, such as that reading it took too long.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"flannel/pkg/doctor"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Options say what to read. VIPFile, JournalFile and LeftFiles are used only on
// Windows.
type Options struct {
	Version     string   // of this program
	SubnetFile  string   // also determines the daemon's socket
	ConfDir     string   // of CNI configurations
	BinDirs     []string // of CNI plugins
	CNIProblem  string   // what is wrong with containerd's directories of CNI; "": nothing is known
	DataDir     string   // of the CNI plugin host-local
	PodResults  string   // where the CNI library keeps results of plugins, which name the pods, on Windows
	VIPFile     string   // where flanneld source-vip publishes the source VIP
	JournalFile string   // where flanneld saves the host's settings (hns.json)
	LeftFiles   []string // files of other scripts; those that exist are in the Snapshot
	Commands    []string // arguments with which flanneld is not the daemon
	// SubnetFileOf returns the path of the subnet file of a daemon with these arguments and
	// environment, or why it is not known. environ is nil if it cannot be read. On Linux
	// only; nil: all daemons count as having the same one.
	SubnetFileOf func(args, environ []string) (string, error)
	Peer         string // name, subnet or address of a peer to which the path is tested; "": some are chosen
	// Underlay reads the interfaces of this machine.
	Underlay func() (underlay.Snapshot, error)
	// Cluster reads the store of leases; nil: it is not read.
	Cluster func(context.Context) doctor.Cluster
	Timeout time.Duration // 0: 5 s
}

// probe reads one part of a Snapshot. Reading and setting are separate, because a
// read that takes too long continues in the background: what it returns after
// the Snapshot was given to the caller must not be written into it.
type probe struct {
	// read runs in a goroutine of its own. The function that it returns sets
	// the part.
	read func(context.Context) (set func())
	// timedOut sets the part instead if read takes too long.
	timedOut func(why string)
}

// factProbe returns a probe that reads one Fact.
func factProbe[T any](fact *doctor.Fact[T], read func(context.Context) (T, error)) probe {
	return probe{
		read: func(ctx context.Context) func() {
			f := known(read(ctx))
			return func() { *fact = f }
		},
		timedOut: func(why string) { *fact = doctor.Unknown[T](why) },
	}
}

// withoutContext adapts a function that does not observe a context.
func withoutContext[T any](read func() (T, error)) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return read() }
}

// Read reads a Snapshot, for the command doctor.
func Read(ctx context.Context, o Options) doctor.Snapshot {
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return run(ctx, o, system)
}

// tookLonger is the reason why a part is unknown, with the timeout.
const tookLonger = "reading it took longer than %s"

// run runs the common probes and those of a system, which read into the
// Snapshot that they are given. No two of them set the same part, so no lock is needed.
func run(ctx context.Context, o Options, system func(Options, *doctor.Snapshot) []probe) doctor.Snapshot {
	s := doctor.Snapshot{OS: runtime.GOOS, At: time.Now(), Version: o.Version, SubnetFile: o.SubnetFile}
	// The probes keep pointers into s; the caller gets a copy when all are done or timed
	// out.
	probes := append(common(o, &s), system(o, &s)...)
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	var running sync.WaitGroup
	for _, p := range probes {
		running.Go(func() {
			read := make(chan func(), 1)
			go func() { read <- p.read(ctx) }() // if it hangs in a system call, the goroutine remains
			select {
			case set := <-read:
				set()
			case <-shortlyAfter(ctx):
				p.timedOut(fmt.Sprintf(tookLonger, o.Timeout))
			}
		})
	}
	running.Wait()
	return s
}

// shortlyAfter returns a channel that is closed 200 ms after ctx ends, so that
// a probe that observes ctx can still return what it has read.
func shortlyAfter(ctx context.Context) <-chan struct{} {
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(200*time.Millisecond, func() { close(closed) }) })
	return closed
}

// common returns the probes for all systems.
func common(o Options, s *doctor.Snapshot) []probe {
	probes := []probe{
		factProbe(&s.Interfaces, withoutContext(o.Underlay)),
		{
			read: func(context.Context) func() {
				env, err := subnet.ReadEnv(o.SubnetFile)
				return func() { s.Env, s.EnvMalformed = known(env, err), errors.Is(err, subnet.ErrMalformed) }
			},
			timedOut: func(why string) { s.Env = doctor.Unknown[subnet.Env](why) },
		},
		factProbe(&s.Daemon, func(ctx context.Context) (doctor.Answer, error) { return daemon(ctx, o.SubnetFile) }),
		{
			read: func(context.Context) func() {
				c, err := cni(o)
				fact := known(c, err)
				fact.Absent = errors.Is(err, fs.ErrNotExist) // a container may not have the host's directory, nor a host without Kubernetes
				return func() { s.CNI = fact }
			},
			timedOut: func(why string) { s.CNI = doctor.Unknown[doctor.CNI](why) },
		},
		factProbe(&s.Machine, withoutContext(firmware)),
	}
	if o.Cluster != nil {
		probes = append(probes, probe{
			read: func(ctx context.Context) func() {
				c := o.Cluster(ctx)
				return func() { s.Cluster = c }
			},
			timedOut: func(why string) { s.Cluster = unknownCluster(why) },
		})
	}
	return probes
}

// daemon reads the daemon's status report. If the daemon does not answer, this
// is the Answer, not an error.
func daemon(ctx context.Context, subnetFile string) (doctor.Answer, error) {
	r, err := status.Ask(ctx, status.Socket(subnetFile))
	switch {
	case err == nil:
		return doctor.Answer{Report: &r}, nil
	case errors.Is(err, status.ErrNotRunning), errors.Is(err, status.ErrNoAnswer):
		return doctor.Answer{Problem: err.Error()}, nil
	}
	return doctor.Answer{}, err
}

// maxConf limits the text of a CNI configuration in the Snapshot, in bytes.
const maxConf = 1 << 20

// cni reads the files that container runtimes read, in the order of their
// names, and lists the plugins. On Linux, it returns an error if ConfDir does
// not exist: a container may not have the host's directory. On Windows, a
// container that can access HNS has all directories of the host, so that the
// directory does not exist there either.
func cni(o Options) (doctor.CNI, error) {
	c := doctor.CNI{ConfDir: o.ConfDir, BinDir: strings.Join(o.BinDirs, ", "), Problem: o.CNIProblem, Unread: map[string]string{}}
	entries, err := os.ReadDir(o.ConfDir)
	switch { // no case: Windows without the directory
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist):
		return c, err
	case runtime.GOOS != "windows":
		return c, fmt.Errorf("look for CNI configurations: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(o.ConfDir, e.Name()))
		if err != nil { // the file is listed all the same
			c.Unread[e.Name()], raw = err.Error(), nil
		}
		c.Files = append(c.Files, doctor.CNIFile{Name: e.Name(), Text: string(raw[:min(len(raw), maxConf)])})
	}
	// Plugins stays nil if they are unknown, in contrast to an empty directory.
	for _, dir := range o.BinDirs {
		if err := addPlugins(&c, dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // a container may not have the host's directory
			c.Unread[dir] = err.Error()
			break // the directory may have any plugin, and runtimes look into the later ones only for others
		}
	}
	return c, nil
}

// addPlugins adds the plugins in a directory that no earlier one has. It returns an error if it
// cannot list the directory.
func addPlugins(c *doctor.CNI, dir string) error {
	plugins, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if c.Plugins == nil {
		c.Plugins = map[string]bool{}
	}
	for _, p := range plugins {
		name := p.Name()
		if runtime.GOOS == "windows" {
			name = name[:len(name)-len(filepath.Ext(name))]
		}
		if _, found := c.Plugins[name]; found {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, p.Name()))
		switch {
		case err == nil && info.Mode().IsRegular():
			// The value says whether it can be executed, for which Windows has no bit.
			c.Plugins[name] = runtime.GOOS == "windows" || info.Mode()&0o111 != 0
		case err != nil && !errors.Is(err, fs.ErrNotExist): // it may be a plugin
			c.Unread[dir+"/"+name] = err.Error()
		}
	}
	return nil
}
