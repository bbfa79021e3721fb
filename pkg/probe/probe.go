// Package probe looks at the machine for pkg/doctor. It changes nothing, and takes seconds at most: every look has a
// bound of its own, and what is not seen within it counts as unknown.
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
	"sync"
	"time"

	"flannel/pkg/doctor"
	"flannel/pkg/status"
	"flannel/subnet"
)

// Options say where to look.
type Options struct {
	Version    string
	SubnetFile string
	ConfDir    string // of CNI configurations
	BinDir     string // of CNI plugins
	DataDir    string // of the CNI plugin host-local; Windows alone
	VIPFile    string // where kube-proxy's source VIP is published; Windows alone
	// JournalFile is where flanneld writes down what an adapter has; Left are files that scripts before ours leave. Both
	// are of Windows alone.
	JournalFile string
	Left        []string
	Commands    []string // arguments by which a process of our name is a command and no daemon
	// Cluster asks the store; its answer may be partial.
	Cluster func(context.Context) doctor.Cluster
	Each    time.Duration // bounds each look; 0 is 5 seconds
}

// probe is one look. When it is over in time, what it returns is called on the snapshot, else late.
type probe struct {
	look func(context.Context) func(*doctor.Snapshot)
	late func(s *doctor.Snapshot, why string)
}

// one makes a probe of a single fact.
func one[T any](at func(*doctor.Snapshot) *doctor.Fact[T], look func(context.Context) (T, error)) probe {
	return probe{
		look: func(ctx context.Context) func(*doctor.Snapshot) {
			v, err := look(ctx)
			return func(s *doctor.Snapshot) {
				if *at(s) = doctor.Known(v); err != nil {
					*at(s) = doctor.Unknown[T](err.Error())
				}
			}
		},
		late: func(s *doctor.Snapshot, why string) { *at(s) = doctor.Unknown[T](why) },
	}
}

// Look takes a Snapshot. All looks run side by side.
func Look(ctx context.Context, o Options) doctor.Snapshot {
	o.Each = cmp.Or(o.Each, 5*time.Second)
	return look(ctx, o, system(o))
}

func look(ctx context.Context, o Options, more []probe) doctor.Snapshot {
	s := doctor.Snapshot{OS: runtime.GOOS, At: time.Now(), Version: o.Version, SubnetFile: o.SubnetFile}
	ctx, cancel := context.WithTimeout(ctx, o.Each)
	defer cancel()
	var mu sync.Mutex // guards s
	var all sync.WaitGroup
	for _, p := range append(common(o), more...) {
		all.Go(func() {
			seen := make(chan func(*doctor.Snapshot), 1)
			go func() { seen <- p.look(ctx) }() // one that hangs in the kernel is left to it
			select {
			case note := <-seen:
				mu.Lock()
				defer mu.Unlock()
				note(&s)
			case <-after(ctx):
				mu.Lock()
				defer mu.Unlock()
				p.late(&s, fmt.Sprintf("to look at it took longer than %s", o.Each))
			}
		})
	}
	all.Wait()
	return s
}

// after ends a moment after ctx, so that a look which heeds it can say what it has.
func after(ctx context.Context) <-chan struct{} {
	late := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(200*time.Millisecond, func() { close(late) }) })
	return late
}

func common(o Options) []probe {
	return []probe{
		one(func(s *doctor.Snapshot) *doctor.Fact[subnet.Env] { return &s.Env },
			func(context.Context) (subnet.Env, error) { return subnet.ReadEnv(o.SubnetFile) }),
		one(func(s *doctor.Snapshot) *doctor.Fact[doctor.Answer] { return &s.Daemon },
			func(ctx context.Context) (doctor.Answer, error) { return daemon(ctx, o.SubnetFile) }),
		one(func(s *doctor.Snapshot) *doctor.Fact[doctor.CNI] { return &s.CNI },
			func(context.Context) (doctor.CNI, error) { return cni(o.ConfDir, o.BinDir) }),
		one(func(s *doctor.Snapshot) *doctor.Fact[doctor.Machine] { return &s.Machine },
			func(context.Context) (doctor.Machine, error) { return maker() }),
		{
			look: func(ctx context.Context) func(*doctor.Snapshot) {
				var c doctor.Cluster
				if o.Cluster != nil {
					c = o.Cluster(ctx)
				}
				return func(s *doctor.Snapshot) { s.Cluster = c }
			},
			late: func(s *doctor.Snapshot, why string) { s.Cluster = noCluster(why) },
		},
	}
}

// daemon asks the daemon how it is; that it does not answer is an answer, too.
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

// maxConf bounds what is read of a CNI configuration, in bytes.
const maxConf = 1 << 20

// cni reads what runtimes read: files of three kinds, in the order of their names.
func cni(confDir, binDir string) (doctor.CNI, error) {
	c := doctor.CNI{ConfDir: confDir, BinDir: binDir}
	entries, err := os.ReadDir(confDir)
	switch {
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist):
		return c, err
	case runtime.GOOS != "windows": // whose containers, those that may look at HNS, see all of the host
		return c, fmt.Errorf("there is no %s here", confDir)
	}
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		raw, _ := os.ReadFile(filepath.Join(confDir, e.Name())) // one that cannot be read is judged as empty
		c.Files = append(c.Files, doctor.CNIFile{Name: e.Name(), Text: string(raw[:min(len(raw), maxConf)])})
	}
	plugins, err := os.ReadDir(binDir)
	if err != nil {
		return c, nil // perhaps the host's, which is not to be seen from a container
	}
	c.Plugins = map[string]bool{}
	for _, p := range plugins {
		if info, err := os.Stat(filepath.Join(binDir, p.Name())); err == nil && info.Mode().IsRegular() {
			name := p.Name()
			if runtime.GOOS == "windows" {
				name = name[:len(name)-len(filepath.Ext(name))]
			}
			c.Plugins[name] = runtime.GOOS == "windows" || info.Mode()&0o111 != 0
		}
	}
	return c, nil
}
