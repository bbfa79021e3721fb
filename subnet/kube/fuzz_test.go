package kube

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"flannel/subnet"
	"flannel/subnet/peerset"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// peersOf are the peers of a node, handed to changed.
func peersOf(own string, changed func(subnet.Set)) *peers {
	return &peers{set: peerset.NewKeeper(own, 0, true, slog.New(slog.DiscardHandler), changed)}
}

// FuzzChanges: whatever Nodes say, come and go, the set is the one that a fresh list of them gives.
func FuzzChanges(f *testing.F) {
	f.Add("10.5.1.0/24\n10.5.2.0/24\nfd05::/64", "vxlan\nhost-gw\n", mac1+"\n"+mac2+"\n{", "1.1.1.1\nfc00::1\n::", []byte{1, 2, 3, 4, 130, 7, 9, 77, 200})
	f.Add("10.5.1.0/24", "x", "null", "1.1.1.1", bytes.Repeat([]byte{1, 2, 3}, 70))
	f.Fuzz(func(t *testing.T, cidrs, backends, data, ips string, ops []byte) {
		pick := func(of string, i byte) string { all := strings.Split(of, "\n"); return all[int(i)%len(all)] }
		var got, want subnet.Set
		p := peersOf("node0", func(s subnet.Set) { got = s })
		store := map[string]*storedNode{}
		var batch []change
		for i, op := range ops[:min(len(ops), 300)] {
			n := &storedNode{Name: fmt.Sprint("node", op&7), Created: int64(op >> 6), CIDRs: []string{pick(cidrs, op>>1), pick(cidrs, op>>3)},
				Annotations: annotated("kube-subnet-manager", "true", "backend-type", pick(backends, op>>4), "backend-data", pick(data, op>>5), "public-ip", pick(ips, op>>2), "public-ipv6", pick(ips, op>>3))}
			if store[n.Name] = n; op%5 == 0 {
				n.Annotations[managed] = "no"
			}
			c := change{name: n.Name, node: n}
			if op%7 == 0 {
				c.node = nil
				delete(store, n.Name)
			}
			if batch = append(batch, c); i%100 == 99 || op&16 != 0 {
				must(t, p.handle(t.Context(), batch))
				batch = nil
			}
		}
		must(t, p.handle(t.Context(), batch))
		var all []change
		for name, n := range store { // in any order
			all = append(all, change{name: name, node: n})
		}
		must(t, peersOf("node0", func(s subnet.Set) { want = s }).handle(t.Context(), all))
		same := slices.EqualFunc(got.Leases, want.Leases, func(a, b *subnet.Lease) bool {
			return a.Name == b.Name && a.Since == b.Since && a.Equal(b)
		})
		if !same || !slices.Equal(got.Rejects, want.Rejects) {
			t.Errorf("after changes %v %v\na list gives %v %v", got.Leases, got.Rejects, want.Leases, want.Rejects)
		}
	})
}
