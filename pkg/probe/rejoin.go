package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"flannel/pkg/dataplane/hns/hostconfig"
	"flannel/pkg/doctor"
)

// routes are those that may lead to peers by host-gw.
func (m machine) routes() ([]doctor.HNSRemote, error) {
	all, err := m.stack.Routes()
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var seen []doctor.HNSRemote
	for _, r := range all {
		if r.Ours && r.NextHop.IsValid() && !r.NextHop.IsUnspecified() {
			seen = append(seen, doctor.HNSRemote{Subnet: r.Dst, Provider: r.NextHop})
		}
	}
	return seen, nil
}

// programs are those of a Kubernetes node that run, by their names without .exe.
func (m machine) programs() ([]string, error) {
	all, err := m.processes()
	if err != nil {
		return nil, err
	}
	seen := []string{}
	for _, p := range all {
		name := strings.TrimSuffix(strings.ToLower(p.name), ".exe")
		if isKubeProxy(name) {
			name = "kube-proxy" // as a download may be called otherwise
		}
		if slices.Contains([]string{"kubelet", "kube-proxy", "containerd", "dockerd"}, name) && !slices.Contains(seen, name) {
			seen = append(seen, name)
		}
	}
	slices.Sort(seen)
	return seen, nil
}

// left are the files that are there.
func left(paths []string) ([]string, error) {
	seen := []string{}
	for _, path := range paths {
		switch _, err := os.Stat(path); {
		case err == nil:
			seen = append(seen, path)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return seen, nil
}

func (m machine) lost(ctx context.Context, path string) (doctor.Lost, error) {
	networks, err := m.client.Networks(ctx)
	if err != nil {
		return doctor.Lost{}, err
	}
	adapters, err1 := m.stack.Adapters()
	routes, err2 := m.stack.Routes()
	if err := errors.Join(err1, err2); err != nil {
		return doctor.Lost{}, fmt.Errorf("look at adapters and routes: %w", err)
	}
	l, err := hostconfig.ReadLost(path, adapters, routes, networks)
	return doctor.Lost{Since: l.Since, Adapter: l.Adapter, What: l.What}, err
}
