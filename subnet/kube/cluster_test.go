package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/logtest"
	"flannel/subnet"
)

// publishedNode is a Node with a lease, and the given conditions.
func publishedNode(conditions ...corev1.NodeCondition) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"kubernetes.io/os": "windows"}, Annotations: map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "backend-data": mac1, prefix + "public-ip": "192.168.0.1"}}}
	n.Spec.PodCIDR = "10.244.1.0/24"
	n.Status.Conditions = conditions
	return n
}

func TestNodeStatus(t *testing.T) {
	at := metav1.Unix(1_700_000_000, 0)
	network := func(status, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionStatus(status), Reason: reason, Message: message, LastTransitionTime: at}
	}
	down := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.", LastTransitionTime: metav1.Unix(1_700_000_500, 0)}
	// What flanneld itself writes.
	up, _ := condition(status{synced: true}, Options{Version: "v1.2.3"}, time.Now())
	broken, _ := condition(status{problem: "no route (flanneld x y)"}, Options{Version: "v1.2.3"}, time.Now())
	up.LastTransitionTime, broken.LastTransitionTime = at, at
	former, _ := condition(status{problem: "no route"}, Options{}, time.Now())
	but := func(n *corev1.Node, change func(*corev1.Node)) *corev1.Node {
		change(n)
		return n
	}
	const lease = " windows vxlan 10.244.1.0/24 192.168.0.1 " + mac1
	for _, c := range []struct {
		name string
		node *corev1.Node
		want string // state, Unix seconds, system, lease, daemon and version; after | what the reason names
	}{
		{"up", publishedNode(*up), "ready 1700000000" + lease + " flanneld v1.2.3 |"},
		{"not up", publishedNode(*broken), `not-ready 1700000000` + lease + ` flanneld v1.2.3 |(flanneld x y)`},
		{"not up, of a former version", publishedNode(*former), "not-ready 0" + lease + " flanneld |route"},
		{"flannel", publishedNode(network("False", "FlannelIsUp", "Flannel is running on this node")), "ready 1700000000" + lease + " flannel |"},
		{"kubelet is down", publishedNode(*up, down), "unknown 1700000500" + lease + " flanneld v1.2.3 |Kubelet"},
		{"no condition", publishedNode(), "unknown 0" + lease + "  |NetworkUnavailable"},
		{"a condition without a value", publishedNode(network("Unknown", "NodeStatusUnknown", "nobody reports")), "unknown 1700000000" + lease + "  |Unknown: NodeStatusUnknown: nobody"},
		{"no route of the cloud", publishedNode(network("True", "NoRouteCreated", "RouteController failed")), "not-ready 1700000000" + lease + "  |NoRouteCreated: RouteController"},
		{"a route of the cloud", publishedNode(network("False", "RouteCreated", "done")), "unknown 1700000000" + lease + "  |RouteCreated"},
		{"no podCIDR", but(publishedNode(*up), func(n *corev1.Node) { n.Spec.PodCIDR = "" }), "no-lease 0 windows  flanneld v1.2.3 |podCIDR"},
		{"no address", but(publishedNode(), func(n *corev1.Node) { delete(n.Annotations, prefix+"public-ip") }), "no-lease 0 windows  10.244.1.0/24  |public-ip"},
		{"a podCIDR that is none", but(publishedNode(), func(n *corev1.Node) { n.Spec.PodCIDR = "x" }), `no-lease 0 windows   |"x"`},
		{"another CNI", &corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24"}}, "unmanaged 0    |" + prefix + "kube-subnet-manager"},
		{"another prefix", but(publishedNode(*up), func(n *corev1.Node) { n.Annotations = nil }), "unmanaged 0 windows  flanneld v1.2.3 |FlannelIsUp --kube-annotation-prefix"},
	} {
		s := nodeStatus(c.node, prefix)
		seconds := int64(0)
		if !s.Since.IsZero() {
			seconds = s.Since.Unix()
		}
		text := fmt.Sprint(s.State, " ", seconds, " ", s.OS, " ", s.Backend)
		for _, e := range s.Endpoints {
			text += " " + e.Subnet.String()
			if e.PublicIP.IsValid() {
				text += fmt.Sprintf(" %s %s", e.PublicIP, e.Data)
			}
		}
		text = strings.TrimRight(fmt.Sprint(text, " ", s.Daemon, " ", s.Version), " ")
		want, reason, _ := strings.Cut(c.want, "|")
		if text != strings.TrimRight(want, " ") || !logtest.Names(s.Reason, strings.Fields(reason)...) || (reason == "") != (s.Reason == "") {
			t.Errorf("%s:\n%s|%s, want\n%s", c.name, text, s.Reason, c.want)
		}
	}
}

func TestCutVersion(t *testing.T) {
	for _, c := range []struct{ message, rest, version string }{
		{withVersion("up", "v1.2.3-4-gabc-dirty"), "up", "v1.2.3-4-gabc-dirty"},
		{withVersion("up", ""), "up", ""},
		{withVersion("a (flanneld v1)", "v2"), "a (flanneld v1)", "v2"},
		{"a (flanneld v1) b", "a (flanneld v1) b", ""},
		{"a (flanneld v1) (b)", "a (flanneld v1) (b)", ""},
		{"a (flanneld b c)", "a (flanneld b c)", ""},
	} {
		if rest, version := cutVersion(c.message); rest != c.rest || version != c.version {
			t.Errorf("%q is %q and %q, want %q and %q", c.message, rest, version, c.rest, c.version)
		}
	}
}

// listed returns the names of the Nodes that a server lists with these answers, and the requests.
func listed(t *testing.T, answers ...func() (code int, body []byte)) (names, requests []string, err error) {
	t.Helper()
	wrap := func(http.RoundTripper) http.RoundTripper {
		return &traffic{intercept: func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			requests = append(requests, r.URL.Query().Get("continue"))
			code, body := answers[0]()
			answers = answers[1:]
			return &http.Response{StatusCode: code, Request: r, Header: http.Header{"Content-Type": {protobuf}}, Body: io.NopCloser(bytes.NewReader(body))}, nil
		}}
	}
	nodes, err := Nodes(t.Context(), Options{APIURL: "http://127.0.0.1:1", Prefix: prefix, wrap: wrap}, "", soon)
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names, requests, err
}

// A list whose revision expires between two pages begins anew, and has no Node twice.
func TestNodesExpired(t *testing.T) {
	page := func(next string, names ...string) func() (int, []byte) {
		list := &corev1.NodeList{ListMeta: metav1.ListMeta{Continue: next}}
		for _, name := range names {
			list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return func() (int, []byte) { return http.StatusOK, kubetest.Encode(t, list, "NodeList") }
	}
	expired := func() (int, []byte) {
		return http.StatusGone, kubetest.Encode(t, &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Status: "Failure"}, "Status")
	}
	names, requests, err := listed(t, page("1", "a", "b"), expired, page("2", "b", "a"), page("", "c"))
	if diff := cmp.Diff([][]string{{"a", "b", "c"}, {"", "1", "", "2"}}, [][]string{names, requests}); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, requests, err := listed(t, slices.Repeat([]func() (int, []byte){page("1", "a"), expired}, maxRelists+1)...); !isExpired(err) || len(requests) != 2*(maxRelists+1) {
		t.Errorf("after %d requests: %v", len(requests), err)
	}
}

// published: what a daemon writes is what others read, with no other permission than to list Nodes.
func published(t *testing.T, o outside) {
	o.add("published-1", "10.244.80.0/24")
	n := start(t, o.Server, "published-1", func(op *Options) { op.Version = "v1.2.3" })
	n.join(tenNet, "192.168.0.80", mac1)
	n.Report(subnet.Report{})
	read := func(token string) (NodeStatus, error) {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		kubeconfig, _ := o.Kubeconfig(token, "")
		nodes, err := Nodes(ctx, Options{Kubeconfig: kubeconfig, Prefix: prefix}, "", soon)
		if i := slices.IndexFunc(nodes, func(s NodeStatus) bool { return s.Name == "published-1" }); i >= 0 {
			return nodes[i], err
		}
		return NodeStatus{}, err
	}
	token := o.Reader("node-lister", "list")
	eventually.True(t, "it is ready, with its version", func() bool {
		s, err := read(token)
		return err == nil && s.State == NodeReady && s.Version == "v1.2.3" && len(s.Endpoints) == 1 && s.Endpoints[0].PublicIP.String() == "192.168.0.80"
	})
	if _, err := read(o.Reader("node-getter", "get")); err == nil || !logtest.Names(err.Error(), "--verb=list", "--resource=nodes", "node-getter") {
		t.Errorf("without the permission: %v", err)
	}
}
