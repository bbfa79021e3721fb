package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/cmd/flannel-lab/lab"
)

// A cluster as its operators use it: nodes are registered at the API, the
// controller assigns subnets, and CNI connects pods.
func TestKubernetesDualStack(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			ctx := t.Context()
			l := start(t, lab.Options{Kube: true, KubeArgs: []string{"-audit"}, Family: lab.Dual},
				`{"Type":"`+backend+`"}`)
			var pods []*lab.Pod
			for i, n := range l.Nodes {
				pods = append(pods, pod(t, n, fmt.Sprintf("pod%d", i+1)))
			}
			for _, from := range pods {
				for _, to := range pods {
					for _, at := range []netip.Addr{to.IP4, to.IP6} {
						_, err := from.Reach(ctx, at, timeout)
						must(t, err)
					}
				}
			}
			showsAllNodes(t, l)
			stay, leave := l.Nodes[0], l.Nodes[2]
			subnets, err := l.Kube.PodCIDRs(ctx, leave.Name)
			must(t, err)
			if len(subnets) != 2 {
				t.Fatalf("%s has %v", leave.Name, subnets)
			}
			drained := backend == "vxlan"
			if drained {
				must(t, pods[2].Delete(ctx))
			}
			must(t, l.Kube.Unregister(ctx, leave))
			within(t, "routes to a deleted node are removed", func() error { return hasNone(t, stay, subnets...) })
			_, err = pods[0].Reach(ctx, pods[1].IP4, timeout)
			must(t, err)

			must(t, l.Kube.Register(ctx, leave))
			subnets, err = l.Kube.PodCIDRs(ctx, leave.Name)
			must(t, err)
			within(t, "routes to a node that was registered again", func() error { return hasAll(t, stay, subnets...) })
			within(t, "the subnet file", func() error {
				env, err := leave.SubnetEnv()
				if p, _ := netip.ParsePrefix(env["FLANNEL_SUBNET"]); err == nil && p.Masked() != subnets[0] {
					err = fmt.Errorf("it has %s, want %s", p, subnets[0])
				}
				return err
			})
			if !drained { // the bridge is the former gateway until the pod is deleted
				gateway := strings.TrimSuffix(pods[2].IP4.String(), ".2") + ".1/24"
				within(t, "the pods' bridge has a former address", func() error { return unready(t, leave, "cni0", gateway, "spec.nodeName="+leave.Name) })
				must(t, pods[2].Delete(ctx))
				must(t, leave.Ready(ctx))
			}
			back := pod(t, leave, "back")
			for _, at := range []netip.Addr{back.IP4, back.IP6} {
				_, err := pods[0].Reach(ctx, at, timeout)
				must(t, err)
			}
			within(t, "all permissions of flannel are used, and no others are needed",
				func() error { return usesItsRights(t, l.Kube) })
		})
	}
}

// showsAllNodes waits until flanneld status --cluster on the first node lists
// all nodes as ready, with the version of their flanneld. It is asked as on a
// node, where the daemon knows the API server, and as in a pod.
func showsAllNodes(t *testing.T, l *lab.Lab) {
	t.Helper()
	n := l.Nodes[0]
	inPod := append([]string{"env"}, l.Kube.PodEnv()...)
	inPod = append(inPod, l.Flanneld(), "--subnet-file=/run/none/subnet.env")
	for _, flanneld := range [][]string{{l.Flanneld()}, inPod} {
		withinOf(t, long, "status --cluster", func() error {
			out, err := n.Run(t.Context(), append(flanneld, "status", "--cluster", "--json", "--timeout=1m")...)
			if err != nil {
				return err // status 3: a node is not ready
			}
			var answer struct{ Nodes []map[string]any }
			must(t, json.Unmarshal([]byte(out), &answer))
			for _, node := range answer.Nodes {
				if version, _ := node["version"].(string); version == "" || node["backend"] == nil {
					return fmt.Errorf("it says of a node %v", node)
				}
			}
			if len(answer.Nodes) != len(l.Nodes) {
				return fmt.Errorf("it lists %d nodes", len(answer.Nodes))
			}
			return nil
		})
	}
}

// usesItsRights compares the role in the manifest with the requests in the
// audit log.
func usesItsRights(t *testing.T, k *lab.Kube) error {
	t.Helper()
	object, err := k.Object("ClusterRole")
	must(t, err)
	var role rbacv1.ClusterRole
	text, err := object.MarshalJSON()
	must(t, err)
	must(t, json.Unmarshal(text, &role))
	unused := map[string]bool{}
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			unused[verb+" "+rule.Resources[0]] = true
		}
	}
	log, err := k.AuditLog()
	must(t, err)
	denied := map[string]int{} // status, by what is not allowed: an API server denies for a moment what its roles allow, until it has read them
	for line := range strings.Lines(log) {
		var e struct {
			Verb, RequestURI string
			User             struct{ Username string }
			ObjectRef        struct{ Resource, Subresource string }
			ResponseStatus   struct{ Code int }
		}
		if json.Unmarshal([]byte(line), &e) != nil || e.User.Username != "system:serviceaccount:kube-flannel:flannel" {
			continue // the last line may be incomplete
		}
		what := strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
		delete(unused, what)
		switch code := e.ResponseStatus.Code; {
		case code == 401 || code == 403:
			denied[what] = code
		case code == 422:
			t.Errorf("flannel was refused: %s %s: %d", what, e.RequestURI, code)
		case code/100 == 2:
			delete(denied, what)
		}
	}
	if len(denied) > 0 {
		return fmt.Errorf("flannel may not: %v", denied)
	}
	delete(unused, "get pods") // for a flannel that reads the name of its node from its pod, see the manifest
	if len(unused) > 0 {
		return fmt.Errorf("permissions never used: %v", slices.Sorted(maps.Keys(unused)))
	}
	return nil
}

// The API server is killed while nodes are added and removed. When it is back,
// the kernel has exactly the routes to the remaining nodes.
func TestKubernetesServerKilledMidChurn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := start(t, lab.Options{Kube: true, Nodes: 2}, `{"Type":"vxlan"}`)
	for i := range 20 {
		addPeer(t, l, i)
	}
	for i := range 10 { // delete, change and add peers before and after the kill
		must(t, l.Kube.Client.CoreV1().Nodes().Delete(ctx, peerName(i), metav1.DeleteOptions{}))
	}
	must(t, l.Kube.Kill())
	time.Sleep(time.Second) // of the outage
	must(t, l.Kube.Start(ctx))
	var want []netip.Prefix
	for i := 10; i < 20; i++ {
		want = append(want, addPeerCIDRs(t, l, peerName(i))...)
	}
	for i := 20; i < 25; i++ {
		want = append(want, addPeer(t, l, i)...)
	}
	for _, n := range l.Nodes {
		within(t, "every peer's route, and no other, on "+n.Name, func() error {
			// The other node of the lab also is a peer.
			if routes := routesVia(t, n); len(routes) != len(want)+1 {
				return fmt.Errorf("%d routes, want %d", len(routes), len(want)+1)
			}
			return hasAll(t, n, want...)
		})
	}
}

func peerName(i int) string { return fmt.Sprintf("peer%d", i) }

// addPeer registers a Node that exists only as an object, with flannel's
// annotations.
func addPeer(t *testing.T, l *lab.Lab, i int) []netip.Prefix {
	t.Helper()
	must(t, l.Kube.AddNode(t.Context(), peerName(i)))
	cidrs := addPeerCIDRs(t, l, peerName(i))
	const prefix = "flannel.alpha.coreos.com/"
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan",
		prefix + "public-ip":    fmt.Sprintf("192.168.100.%d", 100+i),
		prefix + "backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:00:%02x"}`, i),
	}}})
	must(t, err)
	_, err = l.Kube.Client.CoreV1().Nodes().Patch(t.Context(), peerName(i), types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	must(t, err)
	return cidrs
}

func addPeerCIDRs(t *testing.T, l *lab.Lab, name string) []netip.Prefix {
	t.Helper()
	cidrs, err := l.Kube.PodCIDRs(t.Context(), name)
	must(t, err)
	return cidrs
}

// routesVia returns the destinations that a node reaches through other nodes.
func routesVia(t *testing.T, n *lab.Node) (all []netip.Prefix) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		out, err := n.Run(t.Context(), "ip", family, "route", "show", "proto", "70")
		must(t, err)
		for line := range strings.Lines(out) {
			p, err := netip.ParsePrefix(strings.Fields(line)[0])
			must(t, err)
			all = append(all, p)
		}
	}
	return all
}

// hasAll returns an error if the node has no route to one of the destinations.
func hasAll(t *testing.T, n *lab.Node, want ...netip.Prefix) error {
	t.Helper()
	got := routesVia(t, n)
	for _, p := range want {
		if !slices.Contains(got, p) {
			return fmt.Errorf("%s has no route to %s, but %v", n.Name, p, got)
		}
	}
	return nil
}

func hasNone(t *testing.T, n *lab.Node, unwanted ...netip.Prefix) error {
	t.Helper()
	got := routesVia(t, n)
	for _, p := range unwanted {
		if slices.Contains(got, p) {
			return fmt.Errorf("%s still has a route to %s", n.Name, p)
		}
	}
	return nil
}
