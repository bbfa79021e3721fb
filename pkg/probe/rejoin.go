// The probes of machine in this file are for the checks in pkg/doctor/rejoin.go:
// what is left on a Windows node from before it joined, and what it has lost.

package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"flannel/pkg/doctor"
	"flannel/pkg/windows/hostconfig"
)

// routes returns the routes that may be host-gw routes to peers: those that a
// program added and that have a next hop.
func (m machine) routes() ([]doctor.PeerRoute, error) {
	routes, err := m.stack.Routes()
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var peerRoutes []doctor.PeerRoute
	for _, r := range routes {
		// Ours: a program created the route, not the IP stack itself.
		if r.Ours && r.NextHop.IsValid() && !r.NextHop.IsUnspecified() {
			peerRoutes = append(peerRoutes, doctor.PeerRoute{Subnet: r.Dst, Provider: r.NextHop})
		}
	}
	return peerRoutes, nil
}

// programs returns the running programs of a Kubernetes node, by their names
// without .exe.
func (m machine) programs() ([]string, error) {
	processes, err := m.processes()
	if err != nil {
		return nil, err
	}
	running := []string{}
	for _, p := range processes {
		name := strings.TrimSuffix(strings.ToLower(p.name), ".exe")
		if isKubeProxy(name) {
			name = "kube-proxy" // the file may be named kube-proxy-amd64.exe or the like
		}
		isNodeProgram := slices.Contains([]string{"kubelet", "kube-proxy", "containerd", "dockerd"}, name)
		if isNodeProgram && !slices.Contains(running, name) {
			running = append(running, name)
		}
	}
	slices.Sort(running)
	return running, nil
}

// existing returns the paths of the files that exist.
func existing(paths []string) ([]string, error) {
	found := []string{}
	for _, path := range paths {
		switch _, err := os.Stat(path); {
		case err == nil:
			found = append(found, path)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return found, nil
}

// lost compares the settings that flanneld has saved in the journal at path
// (Options.JournalFile) with the present ones. The networks are needed to find the
// adapter that has the host's settings now.
func (m machine) lost(ctx context.Context, path string) (doctor.LostSettings, error) {
	networks, err := m.client.Networks(ctx)
	if err != nil {
		return doctor.LostSettings{}, err
	}
	adapters, err1 := m.stack.Adapters()
	routes, err2 := m.stack.Routes()
	if err := errors.Join(err1, err2); err != nil {
		return doctor.LostSettings{}, fmt.Errorf("list adapters and routes: %w", err)
	}
	l, err := hostconfig.ReadLost(path, adapters, routes, networks) // zero: the journal holds no settings
	return doctor.LostSettings{Since: l.Since, Adapter: l.Adapter, Settings: l.What}, err
}

// category compares the category of the host's network with the one in the journal
// at path. The zero Category means that none is saved.
func (m machine) category(ctx context.Context, path string) (doctor.Category, error) {
	networks, err := m.client.Networks(ctx)
	if err != nil {
		return doctor.Category{}, err
	}
	saved, adapter, c, err := hostconfig.ReadCategory(ctx, path, m.stack, networks)
	if err != nil || saved == nil {
		return doctor.Category{}, err
	}
	// Done: it was restored, or restoring it was given up.
	return doctor.Category{Adapter: adapter, Now: c.String(), Saved: saved.Category.String(), Done: saved.Done, Problem: saved.Problem}, nil
}
