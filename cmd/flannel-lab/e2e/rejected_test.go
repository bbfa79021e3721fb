package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
)

// TestRejectedLeasesDecideNothing deletes the leases of all nodes while the store has
// leases that every node rejects: around all subnets, of the whole network, with the
// address of a node, and many with addresses that no node can have. The peers are
// retained, no daemon ends, and no packet is lost. When all daemons start without
// their leases, each gets its former subnet.
func TestRejectedLeasesDecideNothing(t *testing.T) {
	t.Parallel()
	for backend, bad := range map[string]string{"vxlan": "224.0.0.%d", "host-gw": "203.0.113.%d"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 6, Retain: 120}, `{"Type":"`+backend+`"}`)
			a, b := pair(t, l)
			must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
			before, keys := map[*lab.Node]string{}, map[*lab.Node]string{}
			for _, n := range l.Nodes {
				within(t, n.Name+" is up to date", func() error { return checkSynced(t, l, n) })
				var err error
				before[n], err = entries(t.Context(), n)
				must(t, err)
				keys[n], _ = leaseOf(t, l, n)
			}
			rejected := putRejected(t, l, backend, bad)
			for _, n := range l.Nodes {
				within(t, n.Name+" rejects them", func() error { return has(t, n, fmt.Sprintf("flanneld_invalid_peers %d", rejected)) })
			}
			f := flood(t, a, b)
			deleteKeys(t, l, keys)
			for _, n := range l.Nodes {
				logged(t, n, 0, "cause=mass-withdrawal", "retained=5")
			}
			check := func(when string) {
				for _, n := range l.Nodes {
					withinOf(t, 3*time.Minute, n.Name+" has its lease", func() error { return hasKey(t, l, n, keys[n]) })
				}
				for _, n := range l.Nodes {
					retains(t, l, n, 0)
					becomesReady(t, n)
					within(t, n.Name+" is as before", func() error {
						after, err := entries(t.Context(), n)
						if err == nil && after != before[n] {
							err = fmt.Errorf("%s: the state is\n%s\nand was\n%s", when, after, before[n])
						}
						return err
					})
				}
			}
			check("restored")
			for _, n := range l.Nodes {
				must(t, n.Kill())
			}
			deleteKeys(t, l, keys)
			for _, n := range l.Nodes {
				must(t, n.Start())
				must(t, n.Ready(t.Context()))
			}
			check("started again")
			f.checkNoLoss(t, "all leases deleted beside rejected ones")
		})
	}
}

// putRejected writes leases that every node rejects as long as the nodes have theirs,
// and returns their number.
func putRejected(t *testing.T, l *lab.Lab, backend, bad string) int {
	t.Helper()
	m := &rogueList{backend: backend}
	put := func(key, public string) {
		_, err := etcdClient(t, l).Put(t.Context(), subnetKeys+key, m.lease(public, m.mac()))
		must(t, err)
	}
	own, _ := leaseOf(t, l, l.Nodes[0]) // subnets are random: all of them may be in one half of the network
	around := func(bits int) string {
		p, err := address(t, own).Prefix(bits)
		must(t, err)
		return fmt.Sprintf("%s-%d", p.Addr(), bits)
	}
	for i, key := range []string{"10.5.0.0-16", "0.0.0.0-1", around(17), around(18)} {
		put(key, fmt.Sprintf("192.168.100.%d", 66+i))
	}
	put("10.6.0.0-24", l.Nodes[0].IP4.String())
	for i := range 60 {
		put(fmt.Sprintf("10.5.%d.16-28", i), fmt.Sprintf(bad, 1+i))
	}
	return 65
}

// deleteKeys deletes all keys at once.
func deleteKeys(t *testing.T, l *lab.Lab, keys map[*lab.Node]string) {
	t.Helper()
	var ops []clientv3.Op
	for _, key := range keys {
		ops = append(ops, clientv3.OpDelete(subnetKeys+key))
	}
	_, err := etcdClient(t, l).Txn(t.Context()).Then(ops...).Commit()
	must(t, err)
}

// hasKey returns an error unless the node's lease has the key.
func hasKey(t *testing.T, l *lab.Lab, n *lab.Node, want string) error {
	t.Helper()
	all, err := l.Leases(t.Context())
	if err == nil && all[want] == "" {
		err = fmt.Errorf("there is no lease %s", want)
	}
	return err
}
