package linux

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

func TestLower(t *testing.T) {
	hw, err := dataplane.ParseMAC("c6:d2:32:6f:8f:44")
	if err != nil {
		t.Fatal(err)
	}
	links := dataplane.Links{"eth0": {Index: 2}, "flannel.1": {Index: 7}, "flannel-v6.1": {Index: 8}, "flannel.ipip": {Index: 9}}
	var got strings.Builder
	for _, p := range []dataplane.Path{
		{Dst: netip.MustParsePrefix("10.5.34.0/24"), Via: netip.MustParseAddr("192.168.64.3"), Device: "flannel.1", Encap: dataplane.VTEP{MAC: hw}},
		{Dst: netip.MustParsePrefix("2001:cafe:42:1::/64"), Via: netip.MustParseAddr("fd00::3"), Device: "flannel-v6.1", Encap: dataplane.VTEP{MAC: hw}},
		{Dst: netip.MustParsePrefix("10.5.35.0/24"), Via: netip.MustParseAddr("192.168.64.4"), Device: "eth0", Encap: dataplane.Direct{}},
		{Dst: netip.MustParsePrefix("10.5.37.0/24"), Via: netip.MustParseAddr("192.168.64.6"), Device: "flannel.ipip", Encap: dataplane.IPInIP{}},
		{Dst: netip.MustParsePrefix("10.5.36.0/24"), Via: netip.MustParseAddr("192.168.64.5"), Device: "flannel.9", Encap: dataplane.VTEP{MAC: hw}},
	} {
		e, err := lower(&p, links)
		if err != nil {
			fmt.Fprintln(&got, "error", err)
			continue
		}
		fmt.Fprintln(&got, "route", e.route, e.hop)
		if e.mac != (dataplane.MAC{}) {
			fmt.Fprintln(&got, "neighbour", e.neigh, e.mac)
			fmt.Fprintln(&got, "fdb", e.fdb, e.via)
		}
	}
	want := `route 10.5.34.0/24 via 10.5.34.0 on link 7 onlink
neighbour 10.5.34.0 on link 7 c6:d2:32:6f:8f:44
fdb c6:d2:32:6f:8f:44 on link 7 192.168.64.3
route 2001:cafe:42:1::/64 via 2001:cafe:42:1:: on link 8 onlink
neighbour 2001:cafe:42:1:: on link 8 c6:d2:32:6f:8f:44
fdb c6:d2:32:6f:8f:44 on link 8 fd00::3
route 10.5.35.0/24 via 192.168.64.4 on link 2
route 10.5.37.0/24 via 192.168.64.6 on link 9 onlink
error path to 10.5.36.0/24: device flannel.9 does not exist
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
}

// lowered is what one path comes to; without a tunnel it is a route alone.
type lowered struct {
	route routeKey
	hop   hop
	neigh neighKey
	fdb   fdbKey
	mac   dataplane.MAC
	via   netip.Addr
}

// lower has a driver without a kernel fill its tables.
func lower(p *dataplane.Path, links dataplane.Links) (e lowered, err error) {
	h := host{devices: &devices{sysctls: newSysctls(dataplane.Options{})}, rows: &rows{
		nexthops: reconcile.NewTable(taker[nexthopKey, struct{}](func(nexthopKey, struct{}) {})),
		routes:   reconcile.NewTable(taker[routeKey, hop](func(k routeKey, v hop) { e.route, e.hop = k, v })),
		neighs:   reconcile.NewTable(taker[neighKey, dataplane.MAC](func(k neighKey, v dataplane.MAC) { e.neigh, e.mac = k, v })),
		fdb:      reconcile.NewTable(taker[fdbKey, netip.Addr](func(k fdbKey, v netip.Addr) { e.fdb, e.via = k, v })),
	}}
	d := &Driver{links: links, devices: h.devices, rows: h.rows, kinds: newKinds(h), guard: &guarding{}}
	if err := d.fill(&dataplane.Filling{}, p); err != nil {
		return e, err
	}
	for _, t := range (dataplane.Tables{d.routes, d.neighs, d.fdb}) {
		if _, err := t.Add(context.Background()); err != nil {
			return e, err
		}
	}
	return e, nil
}

// taker is a store that only takes entries.
type taker[K, V comparable] func(K, V)

func (taker[K, V]) Name() string { return "test" }

func (taker[K, V]) List(context.Context) (map[K]V, error) { return nil, nil }

func (take taker[K, V]) Set(_ context.Context, entries []reconcile.Entry[K, V]) []error {
	for _, e := range entries {
		take(e.Key, e.Value)
	}
	return nil
}

func (taker[K, V]) Delete(context.Context, []reconcile.Entry[K, V]) []error { return nil }
