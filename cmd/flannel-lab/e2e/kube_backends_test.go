package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/cmd/flannel-lab/lab"
)

const annotationPrefix = "flannel.alpha.coreos.com/"

// kubeBackend is a configuration, and what follows from it in a cluster whose other
// Nodes are odd: one has no type, the others are named by theirs.
type kubeBackend struct {
	config      string
	annotations string // of a node, without its address, sorted
	accepted    int    // how many of the odd Nodes are peers
	rejected    int    // how many are rejected; the others are pending
}

var kubeBackends = []kubeBackend{
	{alike[0], `backend-data={"VNI":1,"VtepMAC":"?"} backend-type=vxlan`, 1, 2},
	// udp publishes no type, so that one without a type is a whole lease.
	{`{"Type":"udp"}`, `backend-data=null`, 2, 2},
	{likeHostGW, `backend-data=null backend-type=extension`, 0, 3},
	{`{"Type":"wireguard"}`, `backend-data={"PublicKey":"?","Port":51820} backend-type=wireguard`, 0, 3},
	// The type is deleted when there was one of another backend.
	{`{"Type":"udp"}`, `backend-data=null`, 2, 2},
	{alike[0], `backend-data={"VNI":1,"VtepMAC":"?"} backend-type=vxlan`, 1, 2},
}

// TestKubernetesBackends changes the backend of a cluster by the file of its ConfigMap,
// while the nodes run. After each change the Nodes have the annotations that flannel
// writes, odd Nodes are accepted or rejected by its rules, and pods reach each other. At the end,
// nothing of the other backends is left.
func TestKubernetesBackends(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Kube: true, Nodes: 2}, kubeBackends[0].config, atOnce)
	for i, kind := range []string{"", "vxlan", "ipip", "udp"} {
		must(t, l.Kube.AddNode(t.Context(), peerName(i)))
		addPeerCIDRs(t, l, peerName(i))
		data := map[string]string{"vxlan": `{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}`}[kind]
		annotate(t, l, peerName(i), map[string]string{"kube-subnet-manager": "true", "backend-type": kind,
			"backend-data": data, "public-ip": fmt.Sprintf("192.168.100.%d", 100+i)})
	}
	a, b := pair(t, l)
	for _, n := range l.Nodes {
		within(t, n.Name+": the guard knows the bridge of the pods", func() error {
			return says(t, n, `"cni0"`, "nft", "list", "table", "inet", "flannel-guard")
		})
	}
	var fresh []string // what the nodes have before any other backend
	for i, c := range kubeBackends {
		must(t, l.SetConfig(t.Context(), l.Config(c.config)))
		for _, n := range l.Nodes {
			eventually(t, n.Name+" publishes "+c.config, c.annotations+" kube-subnet-manager=true public-ip="+n.IP4.String(),
				func(ctx context.Context) (string, error) { return annotationsOf(ctx, l, n) })
			within(t, n.Name+" accepts and rejects Nodes", func() error {
				return errors.Join(has(t, n, fmt.Sprintf("flanneld_peers %d", 1+c.accepted)),
					has(t, n, fmt.Sprintf("flanneld_invalid_peers %d", c.rejected)))
			})
			becomesReady(t, n)
		}
		must(t, reach(t.Context(), a, b))
		must(t, reach(t.Context(), b, a))
		for k, n := range l.Nodes {
			switch {
			case i == 0:
				has, err := belongings(t.Context(), n, "")
				must(t, err)
				fresh = append(fresh, has)
			case c.config == kubeBackends[0].config:
				eventually(t, "nothing is left on "+n.Name, fresh[k], func(ctx context.Context) (string, error) { return belongings(ctx, n, fresh[k]) })
			}
		}
	}
}

// unique matches values that differ between nodes and runs.
var unique = regexp.MustCompile(`("VtepMAC"|"PublicKey"):"[^"]*"`)

// annotationsOf returns the annotations of a Node that flannel knows. In the place of
// what is unique is "?".
func annotationsOf(ctx context.Context, l *lab.Lab, n *lab.Node) (string, error) {
	node, err := l.Kube.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if name, ours := strings.CutPrefix(key, annotationPrefix); ours {
			all = append(all, name+"="+unique.ReplaceAllString(node.Annotations[key], `$1:"?"`))
		}
	}
	return strings.Join(all, " "), nil
}

// annotate sets flannel's annotations of a Node.
func annotate(t *testing.T, l *lab.Lab, name string, values map[string]string) {
	t.Helper()
	annotations := map[string]string{}
	for key, value := range values {
		annotations[annotationPrefix+key] = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	must(t, err)
	_, err = l.Kube.Client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}
