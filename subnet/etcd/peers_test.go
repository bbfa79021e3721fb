package etcd

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet"
	"flannel/subnet/peerset"
)

const below = "/n/subnets/"

// table is a peers that keeps its last set.
func table(own string) (*peers, *subnet.Set) {
	set, silence := &subnet.Set{}, slog.New(slog.DiscardHandler)
	return &peers{log: silence, prefix: below, own: func() string { return below + own },
		set: peerset.NewKeeper(below+own, 0, false, silence, func(s subnet.Set) { *set = s })}, set
}

func entryOf(rev int64, name, value string) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(below + name), Value: []byte(value), CreateRevision: rev, ModRevision: rev}
}

func names(s *subnet.Set) (all []string) {
	for _, l := range s.Leases {
		all = append(all, l.Name[len(below):])
	}
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Peers that a replaced store lacks stay, over ordinary lists; what never was a lease does not.
func TestStoreReplaced(t *testing.T) {
	p, set := table("10.5.1.0-24")
	p.handleList(t.Context(), &snapshot{kvs: []*mvccpb.KeyValue{entryOf(1, "10.5.1.0-24", peer("1.1.1.1")), entryOf(2, "10.5.2.0-24", peer("1.1.1.2")),
		entryOf(3, "10.5.3.0-24", peer("1.1.1.3")), entryOf(5, "foo", "garbage")}}, false)
	back := entryOf(2, "10.5.3.0-24", peer("1.1.1.3"))
	for _, replaced := range []bool{true, false} {
		p.handleList(t.Context(), &snapshot{kvs: []*mvccpb.KeyValue{back}}, replaced)
		if got := names(set); !slices.Equal(got, []string{"10.5.2.0-24", "10.5.3.0-24"}) || len(set.Rejects) != 0 || len(set.Retained) != 1 {
			t.Errorf("replaced %t: %v, rejects %v, retained %v", replaced, got, set.Rejects, set.Retained)
		}
	}
}

// A key that was deleted and made anew while we were away is the younger one in a tie, on this node as on every other.
func TestAge(t *testing.T) {
	p, set := table("10.5.1.0-24")
	p.handleList(t.Context(), &snapshot{kvs: []*mvccpb.KeyValue{entryOf(5, "10.5.2.0-24", peer("1.1.1.2")), entryOf(6, "10.5.3.0-24", peer("1.1.1.3"))}}, false)
	first := *set
	again := entryOf(6, "10.5.3.0-24", peer("1.1.1.3"))
	again.ModRevision = 9 // renewed: as old as before
	p.handleList(t.Context(), &snapshot{kvs: []*mvccpb.KeyValue{entryOf(8, "10.5.2.0-24", peer("1.1.1.2")), again}}, false)
	if first.Leases[0].Since != 5 || set.Leases[0].Since != 8 || set.Leases[1] != first.Leases[1] {
		t.Errorf("since %d, then since %d; kept %t", first.Leases[0].Since, set.Leases[0].Since, set.Leases[1] == first.Leases[1])
	}
}

// Nothing in etcd says that a node runs Windows but the MAC address that HNS gave it.
func TestWindowsPeers(t *testing.T) {
	p, set := table("10.5.1.0-24")
	lease := func(mac string) string {
		return fmt.Sprintf(`{"PublicIP":"1.1.1.9","BackendType":"vxlan","BackendData":{"VNI":4096,"VtepMAC":%q}}`, mac)
	}
	put := func(rev int64, key, value string) {
		t.Helper()
		p.handle(t.Context(), []*mvccpb.Event{{Kv: entryOf(rev, key, value)}})
	}
	is := func(when, want string) {
		t.Helper()
		if want != "" {
			want = below + want
		}
		if set.Windows != want {
			t.Errorf("%s: %q, want %q", when, set.Windows, want)
		}
	}
	p.handleList(t.Context(), &snapshot{kvs: []*mvccpb.KeyValue{entryOf(1, "10.5.1.0-24", lease("00:15:5d:00:00:01")), entryOf(2, "10.5.2.0-24", lease("82:15:5d:00:00:01"))}}, false)
	is("ourselves and a Linux node", "")
	put(3, "10.5.7.0-24", lease("00-15-5D-AA-BB-CC"))
	is("a Windows node", "10.5.7.0-24")
	put(4, "10.5.3.0-24", lease("00:15:5D:aa:bb:cd"))
	is("another", "10.5.3.0-24")
	put(5, "10.5.3.0-24", lease("02:15:5D:aa:bb:cd"))
	is("that is one no more", "10.5.7.0-24")
	p.handle(t.Context(), []*mvccpb.Event{{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(below + "10.5.7.0-24")}}})
	is("gone", "")
}

// Invalid keys that are only counted are reported as long as there are any, however often keys change in a batch of events.
func TestUnnamedKeys(t *testing.T) {
	p, set := table("10.5.1.0-24")
	var kvs []*mvccpb.KeyValue
	for i := range maxRejects {
		kvs = append(kvs, entryOf(1, fmt.Sprint("junk", i), "garbage"))
	}
	p.handleList(t.Context(), &snapshot{kvs: kvs}, false)
	rnd := rand.New(rand.NewPCG(1, 2))
	created, invalid := map[string]int64{}, map[string]bool{} // the keys that there are: their first revision; whether they are invalid
	for rev := int64(2); rev < 5000; {
		var events []*mvccpb.Event
		for range 1 + rnd.IntN(4) {
			rev++
			key, value := fmt.Sprintf("10.5.%d.0-24", 2+rnd.IntN(3)), peer("1.1.1.2")
			if rnd.IntN(2) == 0 {
				value = "garbage"
			}
			kv := entryOf(rev, key, value)
			switch since, exists := created[key]; {
			case exists && rnd.IntN(2) == 0:
				delete(created, key)
				delete(invalid, key)
				events = append(events, &mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: rev}})
				continue
			case exists:
				kv.CreateRevision = since
			default:
				created[key] = rev
			}
			if delete(invalid, key); value == "garbage" {
				invalid[key] = true
			}
			events = append(events, &mvccpb.Event{Kv: kv})
		}
		p.handle(t.Context(), events)
		if reported := len(set.Rejects) > maxRejects; reported != (len(invalid) > 0) {
			t.Fatalf("reported: %t, although the invalid keys are %v", reported, invalid)
		}
	}
}

func TestDue(t *testing.T) {
	for _, c := range []struct{ left, whole, margin, least, most time.Duration }{
		{24 * time.Hour, 24 * time.Hour, time.Hour, 22*time.Hour + 54*time.Minute, 23 * time.Hour},
		{time.Minute, 24 * time.Hour, time.Hour, 0, 0},
		{2 * time.Hour, 24 * time.Hour, time.Hour, 54 * time.Minute, time.Hour},
		{time.Hour, time.Hour, 23 * time.Hour, 16 * time.Minute, 20 * time.Minute}, // a margin wider than the lease
	} {
		if d := due(c.left, c.whole, c.margin); d < c.least || d > c.most {
			t.Errorf("%v left of %v, margin %v: %v, want %v to %v", c.left, c.whole, c.margin, d, c.least, c.most)
		}
	}
}

func BenchmarkOneEventAmong10000(b *testing.B) {
	p, _ := table("10.5.1.0-24")
	var kvs []*mvccpb.KeyValue
	for i := range 10_000 {
		kvs = append(kvs, entryOf(int64(i+1), fmt.Sprintf("10.%d.%d.0-24", 100+i/256, i%256), peer("1.1.1.1")))
	}
	p.handleList(b.Context(), &snapshot{kvs: kvs}, false)
	for i := 0; b.Loop(); i++ {
		p.handle(b.Context(), []*mvccpb.Event{{Kv: entryOf(int64(20_000+i), "10.110.7.0-24", peer(fmt.Sprintf("1.1.%d.%d", i/200%200+1, i%200+1)))}})
	}
}
