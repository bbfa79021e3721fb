package hostconfig

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
)

// What is still to come back is told from what is written down and what is there; a file of rubbish is an error.
func TestReadLost(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "hns.json")
	read := func(m *hnstest.Machine) (Lost, error) {
		return ReadLost(path, m.Admin().Adapters(), m.Admin().Routes(), nil)
	}
	m := hnstest.New()
	defer m.Close() //nolint:errcheck // it counts handles, of which there are none
	if l, err := read(m); err != nil || !l.Since.IsZero() || l.What != nil {
		t.Errorf("there is no file: %+v, %v", l, err)
	}
	since := time.Date(2026, 8, 5, 10, 0, 0, 0, time.UTC)
	b := &Snapshot{Written: since, Adapter: "Ethernet", Addresses: []SavedAddress{{hnstest.HostAddr, true}}, DNS: []netip.Addr{hnstest.Gateway},
		Routes: []SavedRoute{{netip.MustParsePrefix("0.0.0.0/0"), hnstest.Gateway, 0}}}
	for _, r := range m.Admin().Routes() {
		if r.Dst.Bits() == 0 {
			b.Routes[0].Metric = r.Metric
		}
	}
	for _, c := range []struct {
		change func(*Snapshot)
		want   string
	}{
		{func(*Snapshot) {}, ""},
		{func(b *Snapshot) { b.Routes[0].Metric += 7 }, "route 0.0.0.0/0 via 10.99.0.1, metric"},
		{func(b *Snapshot) {
			b.Addresses = append(b.Addresses, SavedAddress{netip.MustParsePrefix("10.99.0.9/24"), true})
		}, "address 10.99.0.9/24"},
		{func(b *Snapshot) { b.DNS = append(b.DNS, netip.MustParseAddr("10.99.0.53")) }, "10.99.0.53"},
		{func(b *Snapshot) { b.Adapter = "another" }, "another"},
	} {
		one := *b
		one.Addresses, one.Routes, one.DNS = append([]SavedAddress{}, b.Addresses...), append([]SavedRoute{}, b.Routes...), append([]netip.Addr{}, b.DNS...)
		c.change(&one)
		if err := WriteJournal(path, Journal{Snapshot: &one}); err != nil {
			t.Fatal(err)
		}
		l, err := read(m)
		if got := strings.Join(l.What, "; "); err != nil || !l.Since.Equal(since) || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v, %v; want %q", l, err, c.want)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(m); err == nil {
		t.Error("rubbish was read")
	}
}
