package etcd

import (
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet"
)

// FuzzEvents: whatever is written and deleted below the prefix, and however it is cut into events, batches and lists,
// the set is the one that a fresh list of the store gives; what stays the same keeps its pointer.
func FuzzEvents(f *testing.F) {
	f.Add("10.5.2.0-24\n10.5.2.0-24&fd05::-64\nfoo\n", peer("1.1.1.1")+"\ngarbage\n{}", []byte{0, 1, 2, 3, 128, 9, 64, 7, 1})
	f.Add("10.5.1.0-24\n10.5.1.128-25\n0.0.0.0-0&fd05::-64\n::-1", `{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::1"}`, []byte{200, 3, 1, 70, 71, 5, 255, 0})
	f.Fuzz(func(t *testing.T, keys, values string, ops []byte) {
		key, value := strings.Split(keys, "\n"), strings.Split(values, "\n")
		store := map[string]*mvccpb.KeyValue{}
		p, set := table("10.5.1.0-24")
		p.handleList(t.Context(), &snapshot{}, false)
		var batch []*mvccpb.Event
		held := map[string]*subnet.Lease{}
		for i, op := range ops[:min(len(ops), 200)] {
			rev, k := int64(i+2), below+key[int(op&7)%len(key)]
			was := store[k]
			e := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(k), ModRevision: rev, CreateRevision: rev}}
			switch {
			case op&16 != 0 && was != nil:
				e.Type = mvccpb.DELETE
				delete(store, k)
			default:
				if was != nil {
					e.Kv.CreateRevision = was.CreateRevision
				}
				e.Kv.Value = []byte(value[int(op>>5)%len(value)])
				store[k] = e.Kv
			}
			if batch = append(batch, e); op&8 != 0 {
				p.handle(t.Context(), batch)
				batch = nil
			}
		}
		if len(batch) > 0 {
			p.handle(t.Context(), batch)
		}
		for _, l := range set.Leases {
			held[l.Name] = l
		}
		var kvs []*mvccpb.KeyValue
		for _, kv := range store { // in any order
			kvs = append(kvs, kv)
		}
		fresh, want := table("10.5.1.0-24")
		fresh.handleList(t.Context(), &snapshot{kvs: kvs}, false)
		same := slices.EqualFunc(set.Leases, want.Leases, func(a, b *subnet.Lease) bool {
			return a.Name == b.Name && a.Since == b.Since && a.Equal(b)
		})
		if !same || !slices.Equal(set.Rejects, want.Rejects) {
			t.Errorf("after %v: %v %v\na list gives %v %v", ops, names(set), set.Rejects, names(want), want.Rejects)
		}
		p.handleList(t.Context(), &snapshot{kvs: kvs}, false) // again, after an outage
		for _, l := range set.Leases {
			if held[l.Name] != l {
				t.Errorf("%s: another pointer, but nothing changed", l.Name)
			}
		}
	})
}
