package hns

import (
	"fmt"
	"slices"
	"time"

	"flannel/pkg/hns"
)

// host finds the adapter that has, or is to have, what is written down; its error says what is waited for.
func (b *before) host(adapters []hns.Adapter, networks []hns.Network) (hns.Adapter, error) {
	i := slices.IndexFunc(adapters, func(a hns.Adapter) bool {
		return a.GUID == b.GUID && a.GUID != "" || a.Name == b.Adapter && !a.Virtual()
	})
	if i < 0 {
		return hns.Adapter{}, waiting(causeNoAdapter, "the adapter %s to appear", b.Adapter)
	}
	physical := adapters[i]
	host, ok := hostAdapter(adapters, physical, isBound(networks, physical, adapters))
	if !ok {
		return hns.Adapter{}, waiting(causeNoAdapter, "the virtual adapter that takes the place of %s", b.Adapter)
	}
	return host, nil
}

// Lost is what a switch took from an adapter and what has not come back. The zero Lost: nothing is waited for.
type Lost struct {
	Since   time.Time // when it was written down; zero: nothing is
	Adapter string
	What    []string // for a person; empty: all is back
}

// ReadLost compares the journal at path with the machine, and changes neither.
func ReadLost(path string, adapters []hns.Adapter, routes []hns.Route, networks []hns.Network) (Lost, error) {
	j, err := readJournal(path)
	b := j.Before
	if err != nil || b == nil {
		return Lost{}, err
	}
	l := Lost{Since: b.Written, Adapter: b.Adapter}
	host, err := b.host(adapters, networks)
	if err != nil {
		l.What = []string{err.Error()}
		return l, nil
	}
	l.Adapter = host.Name
	gone := b.missing(host, routes)
	for _, p := range slices.Concat(gone.manual, gone.leased) {
		l.What = append(l.What, "address "+p.String())
	}
	if host.DHCP && !b.DHCP {
		l.What = append(l.What, "its address was set by hand, and now DHCP is asked for one")
	}
	for _, r := range gone.routes {
		l.What = append(l.What, fmt.Sprintf("route %s via %s, metric %d", r.Dst, r.NextHop, r.Metric))
	}
	if len(gone.dns) > 0 {
		l.What = append(l.What, fmt.Sprintf("DNS servers %v", gone.dns))
	}
	return l, nil
}
