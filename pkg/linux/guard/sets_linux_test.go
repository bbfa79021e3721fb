package guard

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// content returns what the kernel has in the sets of peers, sorted.
func (g *Guard) content(t *testing.T) (all []string) {
	t.Helper()
	for _, set := range g.peerSets() {
		elements, err := g.conn.GetSetElements(g.set(set))
		if err != nil {
			t.Fatalf("set %s: %v", set, err)
		}
		for _, e := range elements {
			all = append(all, fmt.Sprintf("%s %x", set, e.Key))
		}
	}
	slices.Sort(all)
	return all
}

// Several sets have an element of each peer. Each of them is written again alone, and stays
// as long as any path needs it.
func TestPartsOfElements(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		a, b := path("10.5.2.0/24", "192.0.2.2"), path("10.5.3.0/24", "192.0.2.2", "192.0.2.9")
		six, other := path("2001:cafe:42:2::/64", "2001:db8::2"), path("10.5.9.0/24", "192.0.2.5")
		encrypted := *path("10.5.2.0/24", "192.0.2.2")
		encrypted.Encap = dataplane.WireGuardPeer{}
		contents := map[string][]string{}
		for name, paths := range map[string][]*dataplane.Path{"a": {a}, "a, b and six": {a, b, six}, "encrypted": {&encrypted}} {
			g := l.guard(append(paths, other)...)
			l.apply(g, Config{})
			contents[name] = g.content(t)
			if _, err := g.Remove(false); err != nil {
				t.Fatal(err)
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
		g := l.guard(a, b, six, other)
		defer g.Close() //nolint:errcheck // it wrote all
		check := func(when, want string) {
			t.Helper()
			l.apply(g, Config{})
			if err := g.Prune(t.Context(), driver.Options{}); err != nil {
				t.Fatal(err)
			}
			if have := g.content(t); !slices.Equal(have, contents[want]) {
				t.Errorf("%s: the kernel has %q, want %q", when, have, contents[want])
			}
		}
		check("at first", "a, b and six")
		for _, set := range g.peerSets() {
			elements, err := g.conn.GetSetElements(g.set(set))
			if err != nil || len(elements) == 0 {
				t.Fatalf("set %s has %d elements: %v", set, len(elements), err)
			}
			if err := g.conn.SetDeleteElements(g.set(set), []nftables.SetElement{{Key: elements[0].Key}}); err != nil {
				t.Fatal(err)
			}
			if err := g.flush("delete one"); err != nil {
				t.Fatal(err)
			}
			g.Relist()
			check("one was deleted from "+set, "a, b and six")
		}
		g.Put(driver.Drop, b)
		g.Put(driver.Drop, six)
		check("without others", "a")
		g.Put(driver.Want, &encrypted)
		g.Put(driver.Drop, a)
		check("after another backend", "encrypted")
		if len(g.others) != 0 {
			t.Errorf("counted %v", slices.Collect(maps.Keys(g.others)))
		}
	})
}

// What the kernel has in a set belongs to the element that has it as a part.
func TestElementOfParts(t *testing.T) {
	for _, e := range []element{peer(netip.MustParseAddr("192.0.2.2")), peer(netip.MustParseAddr("2001:db8::2")),
		network(netip.MustParsePrefix("10.5.2.0/24")), network(netip.MustParsePrefix("2001:cafe:42:2::/64")),
		owner(netip.MustParseAddr("192.0.2.2"), netip.MustParsePrefix("192.0.2.3/32")), newElement(codeOf(pods), []byte(ifname("cni0"))...)} {
		for i, p := range e.parts() {
			if of, part := elementOf(p); of != e || part != 1<<i {
				t.Errorf("part %d of %v is part %d of %v", i, e, part, of)
			}
		}
	}
}
