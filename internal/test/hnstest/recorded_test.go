package hnstest_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// A recorded machine decides what a client sees: the version and with it the features, networks in the form that HNS gave
// them, which pods there are, and the form of networks that are created later.
func TestRecorded(t *testing.T) {
	m, err := hnstest.Recorded(os.DirFS("testdata/by-hand"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close() //nolint:errcheck // it is in memory
	c := hns.NewClient(m, hns.Timing{})
	version, err := c.Version(t.Context())
	if f := version.Features(); err != nil || !f.RemoteSubnet || f.VxlanPort {
		t.Errorf("HNS %v (%v) has %+v", version, err, f)
	}
	n, err := c.Network(t.Context(), "flannel.4096")
	if err != nil || n.ID != "0C9A1C1B-4B5E-4B0B-9E0E-7C5A64F2A001" || n.Type != hns.Overlay || n.Adapter != "Ethernet" || n.DRMAC.Unicast() ||
		n.ManagementIP != hnstest.HostAddr.Addr() || len(n.Subnets) != 1 || n.Subnets[0].VSID != 0 {
		t.Errorf("the network is %+v, %v", n, err)
	}
	if doc := string(m.Admin().Networks()[0]); !strings.Contains(doc, `"Health"`) || !strings.Contains(doc, `10.244.5.1/24`) {
		t.Errorf("the document is not the recorded one: %s", doc)
	}
	if all, err := c.Namespaces(t.Context()); err != nil || len(all) != 1 || len(all[0].Endpoints) != 1 || all[0].Endpoints[0] != "5F644190-7482-44CF-B1B1-BDC0F48E3914" {
		t.Errorf("the namespaces are %+v, %v", all, err)
	}
	// The pod of the record has its address, and the next one is free.
	pod := hns.Endpoint{Name: "other", Network: n.ID, IPs: []netip.Prefix{netip.MustParsePrefix("10.244.5.3/24")}}
	if _, err := c.CreateEndpoint(t.Context(), pod); !errors.Is(err, hns.ErrAddressInUse) {
		t.Errorf("the address of the recorded pod: %v", err)
	}
	route, _, err := m.BestRoute(netip.MustParseAddr("1.1.1.1"))
	if err != nil || route.Index != 9 || route.NextHop != hnstest.Gateway {
		t.Errorf("the default route is %+v, %v", route, err)
	}

	id := create(t, m, document("flannel.4097", hns.Overlay, 4097, onAdapter("Ethernet")))
	doc, err := m.Network(id)
	for part, want := range map[string]bool{`"overlay"`: true, `"netadaptername"`: true, "10.244.5.1/24": true, "VSID": false, "0.0.0.0/0": true} {
		if strings.Contains(string(doc), part) != want {
			t.Errorf("a new network is %s (%v); it has %s: %t", doc, err, part, !want)
		}
	}
	if len(m.Admin().Adapters()) != 2 {
		t.Errorf("a second network made another adapter: %+v", m.Admin().Adapters())
	}

	// Deleting both gives the address back to the physical adapter.
	for _, id := range []string{id, n.ID} {
		if err := c.DeleteNetwork(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if got := addresses(m.Admin().Adapter("Ethernet")); got != "10.99.0.2/24" {
		t.Errorf("after all networks were deleted, Ethernet has %q", got)
	}
	if _, err := hnstest.Recorded(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a bundle without the files: %v", err)
	}
}
