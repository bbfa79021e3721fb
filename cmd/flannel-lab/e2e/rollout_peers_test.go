package e2e

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/logtest"
	"flannel/pkg/daemon/rollout"
)

// Tests of what nodes conclude from each other's leases during a rollout.

// TestStaleProof: the lease of a dead node says that it has adopted what is
// offered, which does not work any more.
func TestStaleProof(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 5}, `{"Type":"vxlan"}`)
	_, err := etcdClient(t, l).Put(t.Context(), subnetKeys+"10.5.77.0-24", `{"PublicIP":"192.168.100.77","BackendType":"vxlan",`+
		`"BackendData":{"VNI":77,"VtepMAC":"02:00:00:00:00:77","Adopted":"`+rollout.ID("vxlan, VNI 77, port 9999")+`"}}`)
	must(t, err)
	const turn = 8 * time.Second
	must(t, l.StartAll(t.Context(), "--config-stagger="+turn.String()))
	for _, n := range l.Nodes {
		in(t, n.Namespaces, `nft 'add table inet faulty; add chain inet faulty underlay { type filter hook prerouting priority -300; }; add rule inet faulty underlay udp dport 9999 drop'`)
	}
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan","VNI":77,"Port":9999}`)))
	type trial struct{ from, to time.Time }
	var trials []trial
	for _, n := range l.Nodes {
		var from, to logtest.Records
		within(t, n.Name+" has decided", func() error {
			records := n.Records(0)
			from, to = records.With("cause=config-trial"), records.With("cause=config-reverted")
			if len(to) < len(from) || len(records.With("cause=config-unproven"))+len(to) == 0 {
				return fmt.Errorf("the log is:\n%s", records)
			}
			return nil
		})
		for i := range from {
			trials = append(trials, trial{recorded(t, from[i]), recorded(t, to[i])})
		}
	}
	for _, one := range trials {
		at := 0
		for _, other := range trials {
			if middle := one.from.Add(turn / 2); other.from.Before(middle) && other.to.After(middle) {
				at++
			}
		}
		if at > 2 {
			t.Errorf("%d nodes have tried it at the same time", at)
		}
	}
}

// TestDisruptiveConfigSkew: the kubelets of three nodes update the file of a
// ConfigMap a minute apart. What is lost is counted by pings in all directions.
func TestDisruptiveConfigSkew(t *testing.T) {
	t.Parallel()
	const skew = time.Minute
	for _, c := range []struct{ from, to string }{{`{"Type":"vxlan"}`, `{"Type":"host-gw"}`}, {`{"Type":"host-gw"}`, `{"Type":"vxlan","VNI":77}`}} {
		t.Run(c.to, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Kube: true, Nodes: 3}, c.from, "--config-stagger=20s")
			pods := podEach(t, l)
			var floods []*machine.Flood
			for _, from := range pods {
				for _, to := range pods {
					if from != to {
						f, err := from.Flood(to.IP4, 100)
						must(t, err)
						floods = append(floods, f)
					}
				}
			}
			for i, n := range l.Nodes {
				if i == 2 {
					time.Sleep(skew) // between two nodes
				}
				must(t, n.SetNetConfig(l.Config(c.to)))
			}
			for _, n := range l.Nodes {
				logged(t, n, 0, "cause=config-trial")
				within(t, n.Name+" has adopted it", func() error { return has(t, n, "flanneld_config_pending 0") })
			}
			for i, p := range pods {
				reaches(t, "with the new configuration", p, pods[(i+1)%len(pods)].IP4)
			}
			var wg sync.WaitGroup
			for _, f := range floods { // each waits for late answers
				wg.Go(func() {
					r, err := f.Stop()
					// An idle machine needs less than a second. Nodes that do not wait for each other
					// are apart for the whole skew, however quick the machine is.
					if t.Logf("%v, longest outage %v", r, r.Outage); err != nil || r.Outage > skew/4 {
						t.Errorf("%v, longest outage %v, want %v at most: %v", r, r.Outage, skew/4, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// recorded returns the time of a record.
func recorded(t *testing.T, r logtest.Record) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, r["time"])
	must(t, err)
	return at
}

// timeOf returns when a record with a cause was first logged.
func timeOf(t *testing.T, n *lab.Node, cause string) time.Time {
	t.Helper()
	return recorded(t, logged(t, n, 0, "cause="+cause)[0])
}

// TestRolloutIsNoWithdrawal: nodes that adopt another VNI are unusable for the
// others until these follow. With peers retained as by default, they are not
// missing, and their marks count.
func TestRolloutIsNoWithdrawal(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 8, Retain: 300}, `{"Type":"vxlan"}`, "--config-stagger=8s")
	pods := podEach(t, l)
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan","VNI":77}`)))
	inForce(t, l, "vxlan id 77 ")
	for _, n := range l.Nodes {
		within(t, n.Name+" keeps it", func() error { return has(t, n, "flanneld_config_pending 0") })
		retains(t, l, n, 0)
		if records := n.Records(0).With("cause=mass-withdrawal"); len(records) > 0 { // no lease is deleted, however long nodes take
			t.Errorf("%s takes the rollout for a loss of leases: %v", n.Name, records)
		}
	}
	for i, p := range pods {
		reaches(t, "with another VNI", p, pods[(i+1)%len(pods)].IP4)
	}
}

// TestRolloutAmongJunk: leases that every node rejects take no turns, and nobody
// waits for what they say.
func TestRolloutAmongJunk(t *testing.T) {
	t.Parallel()
	for name, add := range map[string]func(t *testing.T, l *lab.Lab){
		"etcd": func(t *testing.T, l *lab.Lab) {
			etcd := etcdClient(t, l)
			for i := range 300 {
				_, err := etcd.Put(t.Context(), fmt.Sprintf("%s10.%d.%d.0-24", subnetKeys, 20+i/100, i%100), fmt.Sprintf(`{"PublicIP":"192.168.%d.%d",`+
					`"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}}`, 101+i/100, 1+i%100, i/100, i%100))
				must(t, err)
			}
		},
		"Kubernetes": func(t *testing.T, l *lab.Lab) {
			must(t, l.Kube.AddPeers(t.Context(), 100, func(i int) cluster.Peer {
				return cluster.Peer{Name: fmt.Sprint("wide", i), PodCIDR: netip.MustParsePrefix("10.4.0.0/14"), Annotations: map[string]string{
					"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/backend-type": "vxlan",
					"flannel.alpha.coreos.com/public-ip":    fmt.Sprintf("192.168.101.%d", 1+i),
					"flannel.alpha.coreos.com/backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:01:%02x"}`, i),
				}}
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Kube: name == "Kubernetes", Nodes: 3}, `{"Type":"vxlan"}`, "--config-stagger=40s")
			add(t, l)
			for _, n := range l.Nodes {
				logged(t, n, 0, "cause=peer-rejected")
			}
			must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan","VNI":77}`)))
			var offered time.Time // to the last node
			for _, n := range l.Nodes {
				if at := timeOf(t, n, "config-disruptive"); at.After(offered) {
					offered = at
				}
			}
			for _, n := range l.Nodes {
				if after := timeOf(t, n, "config-trial").Sub(offered); after > 50*time.Second { // 10 s are the hold, 40 s or more would be a turn
					t.Errorf("%s tries it %v after it was offered", n.Name, after)
				}
				within(t, n.Name+" keeps it", func() error { return has(t, n, "flanneld_config_pending 0") })
			}
		})
	}
}
