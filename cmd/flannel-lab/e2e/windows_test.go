package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
)

// mixedVXLAN is a configuration with the VNI and port that Windows nodes
// require.
const mixedVXLAN = `{"Type":"vxlan","VNI":4096,"Port":4789}`

// interfaceFlags returns flags that all select the underlay after its address
// has moved to the virtual adapter.
func interfaceFlags(n *lab.Node) []string {
	return []string{"-iface=Ethernet", "-iface=" + n.IP4.String(), "-iface=vEthernet (Ethernet)",
		"-iface-regex=^Ether.*",
		"-iface-regex=" + n.IP4.String(), "-iface-can-reach=" + lab.Outside4.String(), "-iface="}
}

// Two Linux nodes, whose guards enforce, and two Windows nodes over etcd.
func TestWindowsVXLAN(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 4, Windows: 2}, `{"Type":"vxlan","VNI":4096,"Port":4789,"Guard":"enforce","GuardTrial":0},"SubnetLen":26,"SubnetMin":"10.5.128.0"`)
	w := l.Nodes[2]
	check := noneForged(t, l)
	checkMixed(t, l)
	t.Run("restart", func(t *testing.T) {
		loss := expectNoLoss(t, l.Nodes[0].Pods()["pod1"], w.Pods()["pod3"].IP4)
		for _, arg := range interfaceFlags(w) {
			unchanged(t, l, w, arg)
		}
		must(t, w.Kill())
		must(t, w.Start())
		must(t, w.Ready(t.Context()))
		unchanged(t, l, w, "-iface=Ethernet")
		loss()
	})
	check()
	t.Run("leases while down", func(t *testing.T) { leasesWhileDown(t, l, w) })
	t.Run("refused", func(t *testing.T) { refusedPolicies(t, l, w) })
	t.Run("hanging", func(t *testing.T) { hangingHNS(t, l, w) })
	t.Run("external changes", func(t *testing.T) { externalChanges(t, l, w) })
	t.Run("subnet changed", func(t *testing.T) { subnetChanged(t, l, w) })
	t.Run("many peers", func(t *testing.T) { manyPeers(t, l, w) })
	for _, n := range l.Nodes[2:] {
		checkMachine(t, n)
	}
	t.Run("cleanup", func(t *testing.T) { cleanedUp(t, w) })
}

// The same with Kubernetes: leases in the annotations of Nodes, subnets from
// its controller.
func TestWindowsInKubernetes(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 3, Windows: 1}, mixedVXLAN)
	w := l.Nodes[2]
	checkMixed(t, l)
	showsAllNodes(t, l)
	unchanged(t, l, w, "-iface="+w.IP4.String())
	// Connections to the API server end with the move of the address, and somebody
	// deletes the network.
	order(t, w, windows.Order{Turn: []byte(`{"KillTCP":true,"Outage":3000000000}`), DeleteNetwork: "flannel.4096"})
	withinOf(t, long, "the network is created again", func() error {
		if !strings.Contains(strings.Join(hnsChanges(t, w), "\n"), "HcnCreateNetwork") {
			return fmt.Errorf("changed: %v", hnsChanges(t, w))
		}
		return nil
	})
	follow(t, l, "after the outage")
	withinOf(t, long, "ready", func() error { return ready(t, w) })
	checkMachine(t, w)
}

// checkMixed checks a running cluster: the leases, the entries of each node,
// and pings between all pods.
func checkMixed(t *testing.T, l *lab.Lab) {
	t.Helper()
	for key, v := range leases(t, l) {
		i := slices.IndexFunc(l.Nodes, func(n *lab.Node) bool { return n.IP4.String() == v.PublicIP })
		if i < 0 || v.BackendType != "vxlan" || v.BackendData == nil || v.BackendData.VNI != 4096 {
			t.Fatalf("the lease %s is %+v", key, v)
		}
		if n := l.Nodes[i]; n.Windows != nil {
			mac := strings.ReplaceAll(strings.ToLower(networkNow(t, n).DRMAC.String()), "-", ":")
			if v.BackendData.VtepMAC != mac {
				t.Errorf("the lease of %s has %s, HNS %s", n.Name, v.BackendData.VtepMAC, mac)
			}
			env, err := n.SubnetEnv()
			must(t, err)
			want := map[string]string{"FLANNEL_NETWORK": lab.Network4,
				"FLANNEL_SUBNET": address(t, key).Next().String() + "/" + key[strings.IndexByte(key, '-')+1:],
				"FLANNEL_MTU":    "1450", "FLANNEL_IPMASQ": "true"}
			if fmt.Sprint(env) != fmt.Sprint(want) {
				t.Errorf("subnet.env of %s is %v, want %v", n.Name, env, want)
			}
		}
	}
	var pods []*lab.Pod
	for i, n := range l.Nodes {
		waitSynced(t, l, n)
		pods = append(pods, pod(t, n, fmt.Sprintf("pod%d", i+1)))
	}
	reachAllPods(t, pods)
	for _, n := range l.Nodes {
		if n.Windows != nil {
			order(t, n, windows.Order{ForgetLog: true})
		}
	}
}

// reachAllPods pings between all pods in both directions. Pods of Windows nodes
// only have IPv4, because the plugin does not support IPv6.
func reachAllPods(t *testing.T, pods []*lab.Pod) {
	t.Helper()
	for _, from := range pods {
		for _, to := range pods {
			if from.Node == to.Node {
				continue
			}
			_, err := from.Reach(t.Context(), to.IP4, long)
			must(t, err)
			if from.IP6.IsValid() && to.IP6.IsValid() {
				_, err := from.Reach(t.Context(), to.IP6, long)
				must(t, err)
			}
		}
	}
}
