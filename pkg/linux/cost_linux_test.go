package linux

import (
	"log/slog"
	"net/netip"
	"testing"

	"flannel/pkg/dataplane"
)

// benchPaths leads to n peers through a tunnel.
func benchPaths(n int) []*dataplane.Path {
	paths := make([]*dataplane.Path, 0, n)
	for i := range n {
		paths = append(paths, &dataplane.Path{
			Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			Via: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}), Device: "flannel.1", Encap: dataplane.VTEP{MAC: dataplane.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)}},
		})
	}
	return paths
}

// What it costs to tell the tables of 10,000 paths, and of one that changed.
func BenchmarkWant(b *testing.B) {
	d, err := New(dataplane.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close() //nolint:errcheck // it ends here
	links := dataplane.Links{"eth0": {Index: 2}, "flannel.1": {Index: 7}}
	paths := benchPaths(10_000)
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d.resetTables()
			d.begin(links, dataplane.State{})
			if err := d.want(dataplane.State{Paths: paths}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			next := append([]*dataplane.Path(nil), paths...)
			changed := *next[5000]
			next[5000] = &changed
			if err := d.want(dataplane.State{Paths: next}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
