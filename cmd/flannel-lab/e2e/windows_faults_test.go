package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// farPeer returns the lease of a node that does not exist, in the lower half of
// the network. i must be below 512.
func farPeer(i, generation int) (string, *value) {
	return fmt.Sprintf("10.5.%d.%d-26", i/4, i%4*64), &value{
		PublicIP: fmt.Sprintf("172.16.%d.%d", generation, i%250+1), BackendType: "vxlan",
		BackendData: &vtep{4096, fmt.Sprintf("02:00:00:%02x:%02x:%02x", generation, i/256, i%256)},
	}
}

// A policy in the form in which flanneld adds it, and in the form in which HNS
// returns it and flanneld removes it.
const (
	policyAsked = `{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"%[1]s","IsolationId":4096,"ProviderAddress":"%[2]s","DistributedRouterMacAddress":"%[3]s"}}`
	policyKept  = `{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"%[1]s","DistributedRouterMacAddress":"%[3]s","IsolationId":4096,"ProviderAddress":"%[2]s"}}`
)

// policyTo returns the policy for a farPeer.
func policyTo(form string, i, generation int) string {
	key, v := farPeer(i, generation)
	return fmt.Sprintf(form, strings.Replace(key, "-", "/", 1), v.PublicIP,
		strings.ToUpper(strings.ReplaceAll(v.BackendData.VtepMAC, ":", "-")))
}

func putFarPeer(t *testing.T, l *lab.Lab, i, generation int) {
	t.Helper()
	key, v := farPeer(i, generation)
	putLease(t, l, key, v)
}

// putFarPeers writes the leases from..to-1, 100 per transaction.
func putFarPeers(t *testing.T, l *lab.Lab, from, to int) {
	t.Helper()
	for chunk := range slices.Chunk(slices.Collect(numbersFrom(from, to)), 100) {
		var puts []clientv3.Op
		for _, i := range chunk {
			key, v := farPeer(i, 0)
			puts = append(puts, clientv3.OpPut(leasePrefix+key, marshal(t, v)))
		}
		_, err := etcdClient(t, l).Txn(t.Context()).Then(puts...).Commit()
		must(t, err)
	}
}

func numbersFrom(from, to int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := from; i < to && yield(i); i++ {
		}
	}
}

// follow waits until all running nodes match the leases, which may still
// change.
func follow(t *testing.T, l *lab.Lab, what string) {
	t.Helper()
	withinOf(t, long, what+": all nodes match the leases", func() error {
		for _, n := range l.Nodes {
			if !n.Running() {
				continue
			}
			if err := checkSynced(t, l, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// Leases are added, changed and removed while flanneld.exe is not running. It
// changes exactly these.
func leasesWhileDown(t *testing.T, l *lab.Lab, w *lab.Node) {
	for i := range 3 {
		putFarPeer(t, l, i, 0)
	}
	follow(t, l, "three leases")
	stoppedByCtrlC(t, w)
	withdrawn, _ := farPeer(0, 0)
	putLease(t, l, withdrawn, nil)
	putFarPeer(t, l, 1, 1)
	putFarPeer(t, l, 3, 0)
	order(t, w, windows.Order{ForgetLog: true})
	must(t, w.Start())
	must(t, w.Ready(t.Context()))
	follow(t, l, "after the start")
	const request = `HcnModifyNetwork flannel.4096 {"ResourceType":"Policy","RequestType":"%s","Settings":{"Policies":[%s]}}`
	want := []string{
		fmt.Sprintf(request, "Remove", policyTo(policyKept, 1, 0)),
		// In the order of their text: 10.5.0.192 before 10.5.0.64.
		fmt.Sprintf(request, "Add", policyTo(policyAsked, 3, 0)+","+policyTo(policyAsked, 1, 1)),
		fmt.Sprintf(request, "Remove", policyTo(policyKept, 0, 0)),
	}
	if got := hnsChanges(t, w); !slices.Equal(got, want) {
		t.Errorf("the start made the changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Changes by somebody else are repaired within seconds, and logged once.
func externalChanges(t *testing.T, l *lab.Lab, w *lab.Node) {
	subnet, _ := farPeer(2, 0)
	for _, c := range []struct {
		what string
		do   windows.Order
	}{
		{"a policy removed", windows.Order{DeleteRemoteSubnet: [2]string{"flannel.4096", strings.Replace(subnet, "-", "/", 1)}}},
		{"a policy changed", windows.Order{Replace: [][2]string{{"172.16.0.3", "172.16.9.9"}}}},
		{"the network deleted", windows.Order{DeleteNetwork: "flannel.4096"}},
		{"HNS restarted", windows.Order{Restart: true}},
	} {
		mark, id := len(w.Log()), networkNow(t, w).ID
		c.do.ForgetLog = true
		order(t, w, c.do)
		withinOf(t, long, c.what+": noticed", func() error {
			if len(hnsChanges(t, w)) == 0 {
				return fmt.Errorf("nothing was changed")
			}
			return nil
		})
		follow(t, l, c.what)
		withinOf(t, long, "ready", func() error { return ready(t, w) })
		if kept := networkNow(t, w).ID == id; kept != strings.Contains(c.what, "policy") {
			t.Errorf("%s: the same network: %t", c.what, kept)
		}
		if records := w.Records(mark); len(records.With("cause=network-made")) > 1 || len(records) > 10 {
			t.Errorf("%s: logged\n%s", c.what, records)
		}
	}
}

// refusedPolicies: HNS refuses a policy at first, and accepts it later.
func refusedPolicies(t *testing.T, l *lab.Lab, w *lab.Node) {
	mark := len(w.Log())
	order(t, w, windows.Order{Fail: []hnstest.Fault{{Func: "HcnModifyNetwork", Match: `"Add"`, Times: 3, Code: 0x8007001f}}})
	putFarPeer(t, l, 5, 0)
	withinOf(t, long, "the code is logged", func() error {
		if records := w.Records(mark); len(records.Naming("", "0x8007001f")) == 0 {
			return fmt.Errorf("the log is\n%s", records)
		}
		return nil
	})
	follow(t, l, "a policy that was refused")
	withinOf(t, long, "ready", func() error { return ready(t, w) })
}

// hangingHNS: a call of HNS that does not return blocks nothing else,
// especially not Ctrl-C.
func hangingHNS(t *testing.T, l *lab.Lab, w *lab.Node) {
	for _, function := range []string{"HcnModifyNetwork", ""} {
		order(t, w, windows.Order{Fail: []hnstest.Fault{{Func: function, Hang: true}}})
		putFarPeer(t, l, 6, 0)
		withinOf(t, long, "/readyz reports that HNS hangs",
			func() error { return unready(t, w, hns.ErrTimeout.Error()) })
		if code, _, err := w.Ask(t.Context(), "/healthz"); err != nil || code != 200 {
			t.Errorf("/healthz: %d %v", code, err)
		}
		stoppedByCtrlC(t, w)
		if function == "" { // any call, from the start of the daemon on
			must(t, w.Start())
			withinOf(t, long, "/readyz reports what flanneld waits for",
				func() error { return unready(t, w, hns.ErrTimeout.Error()) })
			stoppedByCtrlC(t, w)
		}
		order(t, w, windows.Order{Heal: true})
		must(t, w.Start())
		must(t, w.Ready(t.Context()))
		follow(t, l, "HNS answers again")
		key, _ := farPeer(6, 0)
		putLease(t, l, key, nil)
		follow(t, l, "the lease is removed")
	}
}

// subnetChanged: another subnet needs another network, on the physical adapter.
func subnetChanged(t *testing.T, l *lab.Lab, w *lab.Node) {
	key, _ := leaseOf(t, l, w)
	id := networkNow(t, w).ID
	stoppedByCtrlC(t, w)
	putLease(t, l, key, nil)
	putLease(t, l, key, &value{PublicIP: "172.16.8.8", BackendType: "vxlan", BackendData: &vtep{4096, "02:00:00:00:08:08"}}) // another node has the subnet now
	mark := len(w.Log())
	must(t, w.Start())
	must(t, w.Ready(t.Context()))
	follow(t, l, "another subnet")
	withinOf(t, long, "ready", func() error { return ready(t, w) })
	if after, _ := leaseOf(t, l, w); after == key || networkNow(t, w).ID == id {
		t.Errorf("the subnet is %s, was %s", after, key)
	}
	logged(t, w, mark, "cause=network-remade")
	putLease(t, l, key, nil)
	follow(t, l, "the lease of the other node is removed")
}

// manyPeers counts the calls of the real flanneld.exe for 250 peers.
func manyPeers(t *testing.T, l *lab.Lab, w *lab.Node) {
	stoppedByCtrlC(t, w)
	putFarPeers(t, l, 100, 350)
	order(t, w, windows.Order{ForgetLog: true})
	must(t, w.Start())
	must(t, w.Ready(t.Context()))
	follow(t, l, "250 more peers")
	counts := func(what string, limit int) {
		t.Helper()
		r := order(t, w, windows.Order{})
		// Others are of the host's settings, which flanneld.exe also stores some seconds after its start.
		others := func(c hnstest.Call) bool { return !strings.HasPrefix(c.Func, "Hcn") && c.Func != "HNSCall" }
		changes := slices.DeleteFunc(r.Changes(), others)
		t.Logf("%s: %d calls of HNS, %d of them changes", what, len(slices.DeleteFunc(r.Log, others)), len(changes))
		if len(changes) > limit {
			t.Errorf("%s took %d changes, want %d:\n%v", what, len(changes), limit, changes)
		}
		order(t, w, windows.Order{ForgetLog: true})
	}
	counts("250 peers", 1)
	unchanged(t, l, w, "-iface=Ethernet")
	counts("a restart", 0)
	putFarPeer(t, l, 350, 0)
	follow(t, l, "one lease added")
	counts("one lease added", 1)
	putFarPeer(t, l, 350, 1)
	follow(t, l, "one lease moved")
	counts("one lease moved", 2)
	key, _ := farPeer(350, 1)
	putLease(t, l, key, nil)
	follow(t, l, "one lease removed")
	counts("one lease removed", 1)
}

// cleanedUp: `flanneld.exe cleanup` removes everything, and the address is on
// the physical adapter again.
func cleanedUp(t *testing.T, w *lab.Node) {
	stoppedByCtrlC(t, w)
	must(t, w.StartWith("cleanup"))
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	code, err := w.Wait(ctx)
	must(t, err)
	r := order(t, w, windows.Order{})
	if !exitedCleanly(code) || len(r.Networks)+len(r.Endpoints) > 0 {
		t.Errorf("cleanup exited with %d and left %s %s", code, r.Networks, r.Endpoints)
	}
	for _, a := range r.Adapters {
		if has := slices.ContainsFunc(a.Addrs, addressIs(w)); has != (a.Name == lab.Adapter) {
			t.Errorf("%s has %+v", a.Name, a.Addrs)
		}
	}
}
