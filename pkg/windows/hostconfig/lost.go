package hostconfig

import (
	"fmt"
	"slices"
	"time"

	"flannel/pkg/windows/hns"
)

// Lost lists the saved settings that the adapter does not have, for flanneld
// doctor. The zero Lost means that the journal holds no snapshot.
type Lost struct {
	Since   time.Time // when the snapshot was taken
	Adapter string
	What    []string // "address 10.99.0.2/24"; empty: nothing is missing
}

// ReadLost compares the snapshot of the journal at path with the adapters and
// routes of the machine. It changes nothing.
func ReadLost(path string, adapters []hns.Adapter, routes []hns.Route, networks []hns.Network) (Lost, error) {
	j, err := ReadJournal(path)
	snapshot := j.Snapshot
	if err != nil || snapshot == nil {
		return Lost{}, err
	}
	l := Lost{Since: snapshot.Written, Adapter: snapshot.Adapter}
	host, err := snapshot.hostAdapter(adapters, networks)
	if err != nil {
		l.What = []string{err.Error()}
		return l, nil
	}
	l.Adapter = host.Name
	missing := snapshot.missing(host, routes)
	for _, p := range slices.Concat(missing.manual, missing.leased) {
		l.What = append(l.What, "address "+p.String())
	}
	if snapshot.becameDHCP(host) {
		l.What = append(l.What, "its address was set by hand, and the adapter now uses DHCP")
	}
	for _, r := range missing.routes {
		l.What = append(l.What, fmt.Sprintf("route %s via %s, metric %d", r.Dst, r.NextHop, r.Metric))
	}
	if snapshot.MTU != 0 && snapshot.MTU != host.MTU {
		l.What = append(l.What, fmt.Sprintf("MTU %d", snapshot.MTU))
	}
	if len(missing.dns) > 0 {
		l.What = append(l.What, fmt.Sprintf("DNS servers %v", missing.dns))
	}
	return l, nil
}
