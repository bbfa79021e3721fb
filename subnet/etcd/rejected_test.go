package etcd

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/subnet"
)

// junk puts keys that every node rejects, at least while the peers' leases are there.
var junk = map[string]func(st store){
	"the whole network":     func(st store) { st.put("subnets/10.5.0.0-16", peerOf("192.168.64.66", "", 66)) },
	"half of all addresses": func(st store) { st.put("subnets/0.0.0.0-1", peerOf("192.168.64.66", "", 66)) },
	"around the peers":      func(st store) { st.put("subnets/10.5.0.0-17", peerOf("192.168.64.66", "", 66)) },
	"around all": func(st store) {
		st.put("subnets/10.5.0.0-17", peer("192.168.64.66"))
		st.put("subnets/10.5.128.0-17", peer("192.168.64.67"))
	},
	"the address of a peer": func(st store) { st.put("subnets/10.6.0.0-24", peerOf("192.168.64.1", "", 66)) },
	"sixty with bad addresses": func(st store) {
		for i := range 60 {
			st.put(fmt.Sprintf("subnets/10.5.%d.0-24", 100+i), peerOf(fmt.Sprintf("224.0.0.%d", i), "", 100+i))
		}
	},
	"sixty with the VTEP of a peer": func(st store) {
		for i := range 60 {
			st.put(fmt.Sprintf("subnets/10.5.%d.0-24", 100+i), peerOf(fmt.Sprintf("192.168.64.%d", 100+i), "", 1))
		}
	},
	"parts of the peers' subnets": func(st store) {
		for i := range 60 {
			st.put(fmt.Sprintf("subnets/10.5.%d.%d-28", 1+i%6, i/6*16), peerOf(fmt.Sprintf("192.168.64.%d", 100+i), "", 100+i))
		}
	},
	"sixty without backend data": func(st store) {
		for i := range 60 {
			st.put(fmt.Sprintf("subnets/10.5.%d.0-24", 100+i), fmt.Sprintf(`{"PublicIP":"192.168.64.%d"}`, 100+i))
		}
	},
}

// Whatever somebody has written beside the leases of the nodes: when these are deleted, they are retained, and our own
// is put back.
func TestRejectedKeysDecideNothing(t *testing.T) {
	for name, put := range junk {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := outside(t, etcdtest.Start(t))
			st.addPeer(1)
			put(st)
			rejects, err := st.Get(t.Context(), base+"/subnets/", clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			var peers []string
			for i := range 6 {
				peers = append(peers, st.addPeer(i+1))
			}
			n := start(t, st.Endpoints()[0], func(o *Options) { o.Retain = 5 * time.Minute })
			n.SetJudge(judge(t))
			key := n.publish(outOfTheWay("192.168.64.99"), mac1).Name
			n.Run()
			all := int(rejects.Count) - 1 + len(peers)
			sees := func() bool { s, _ := n.Last(); return len(s.Leases) == all }
			eventually.True(t, "it sees all", sees)

			st.Delete(t.Context(), key)
			for _, p := range peers {
				st.remove("subnets/" + p)
			}
			n.retains(t, len(peers))
			if !sees() {
				t.Errorf("it sees %s", n.Peers())
			}
			n.hasNow(t)
			eventually.True(t, "put back", func() bool { raw, _ := st.value(key); return raw == peer("192.168.64.99") })
			n.notLost()
		})
	}
}

// A node gets its former subnet, and a new one a free subnet, although somebody's keys occupy the whole network.
func TestRejectedKeysDoNotOccupy(t *testing.T) {
	former := netip.MustParsePrefix("10.5.77.0/24")
	for name, keys := range map[string][]string{
		"around all":        {"10.5.0.0-17", "10.5.128.0-17"},
		"of four sizes":     {"10.5.0.0-17", "10.5.128.0-18", "10.5.192.0-19", "10.5.224.0-19"},
		"parts, rejected":   nil,
		"around all, valid": {"10.5.0.0-17", "10.5.128.0-17", "10.5.3.0-24", "10.5.4.0-25"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := outside(t, etcdtest.Start(t))
			for i, key := range keys {
				st.put("subnets/"+key, peerOf(fmt.Sprintf("192.168.64.%d", 66+i), "", 66+i))
			}
			if keys == nil {
				for i := range 256 {
					st.put(fmt.Sprintf("subnets/10.5.%d.128-28", i), peer("224.0.0.1"))
				}
			}
			for i, want := range []netip.Prefix{former, {}} {
				n := start(t, st.Endpoints()[0], nil)
				n.SetJudge(judge(t))
				l, err := n.Acquire(t.Context(), tenNet, subnet.Lease{V4: subnet.Endpoint{PublicIP: addr(fmt.Sprintf("192.168.64.%d", i+1)), Subnet: want}})
				if err != nil || want.IsValid() && l.V4.Subnet != want || subnet.Fits(tenNet, &l) != nil {
					t.Errorf("with %v in the subnet file it gets %v (%v)", want, l.V4.Subnet, err)
				}
			}
		})
	}
}

// What is ignored first is what nobody uses: leases of another length that are valid are avoided for as long as possible.
func TestValidKeysAreAvoidedLonger(t *testing.T) {
	t.Parallel()
	st := outside(t, etcdtest.Start(t))
	cfg := tenNet
	cfg.V4.Max = addr("10.5.5.0")
	st.put("subnets/10.5.1.0-24", peerOf("192.168.64.11", "", 11))
	st.put("subnets/10.5.2.128-25", peerOf("192.168.64.12", "", 12))                                            // valid, so that it is avoided always
	st.put("subnets/10.5.3.128-25", peerOf("224.0.0.1", "", 13))                                                // ignored first
	st.put("subnets/10.5.4.0-23", peerOf("192.168.64.14", "", 14))                                              // ignored then
	st.put("subnets/10.5.5.128-25", strings.ReplaceAll(peerOf("192.168.64.15", "", 15), `"VNI":1`, `"VNI":77`)) // its node uses it
	for i, want := range []string{"10.5.3.0/24", "10.5.4.0/24", ""} {
		n := start(t, st.Endpoints()[0], nil)
		n.SetJudge(judge(t))
		l, err := n.Acquire(t.Context(), cfg, at(fmt.Sprintf("192.168.64.%d", 21+i)))
		if want == "" {
			if !errors.Is(err, errFull) {
				t.Errorf("it gets %v (%v), but all are taken", l.V4.Subnet, err)
			}
		} else if err != nil || l.V4.Subnet.String() != want {
			t.Errorf("it gets %v (%v), want %s", l.V4.Subnet, err, want)
		}
		if err == nil && !strings.Contains(n.logs.String(), causeIgnoredLeases) {
			t.Errorf("nothing is logged:\n%s", n.logs)
		}
	}
}
