package guard

import (
	"log/slog"
	"net/netip"
	"testing"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// The kernel answers each rule of a transaction. The guard reads all of these answers.
func TestManyRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, err := New(slog.New(slog.DiscardHandler), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // it wrote all
		c := Config{Outer: overVXLAN, Networks: prefixes("10.5.0.0/16"), Subnets: prefixes("10.5.1.0/24")}
		for a := netip.MustParseAddr("198.51.100.0"); len(c.Sources) < 250; a = a.Next() {
			c.Sources = append(c.Sources, netip.PrefixFrom(a, 32))
			if n := len(c.Sources); n == 10 || n == 30 || n == 100 || n == 250 {
				if err := g.Apply(t.Context(), dataplane.Options{}, &c, func() ([]string, error) { return nil, nil }); err != nil {
					t.Fatalf("%d sources, with several rules for each: %v", n, err)
				}
			}
		}
	})
}
