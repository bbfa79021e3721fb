package linux

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
)

func TestLower(t *testing.T) {
	hw, err := mac.Parse("c6:d2:32:6f:8f:44")
	if err != nil {
		t.Fatal(err)
	}
	links := dataplane.Links{"eth0": {Index: 2}, "flannel.1": {Index: 7}, "flannel-v6.1": {Index: 8}}
	var got strings.Builder
	for _, p := range []dataplane.Path{
		{Dst: netip.MustParsePrefix("10.5.34.0/24"), Via: netip.MustParseAddr("192.168.64.3"), Device: "flannel.1", MAC: hw},
		{Dst: netip.MustParsePrefix("2001:cafe:42:1::/64"), Via: netip.MustParseAddr("fd00::3"), Device: "flannel-v6.1", MAC: hw},
		{Dst: netip.MustParsePrefix("10.5.35.0/24"), Via: netip.MustParseAddr("192.168.64.4"), Device: "eth0", MAC: mac.Addr{}},
		{Dst: netip.MustParsePrefix("10.5.36.0/24"), Via: netip.MustParseAddr("192.168.64.5"), Device: "flannel.9", MAC: hw},
	} {
		e, err := lower(&p, links)
		if err != nil {
			fmt.Fprintln(&got, "error", err)
			continue
		}
		fmt.Fprintln(&got, "route", e.route, e.hop)
		if e.mac != (mac.Addr{}) {
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
error path to 10.5.36.0/24: device flannel.9 is not there
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
}
