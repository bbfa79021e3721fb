package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/logtest"
	"flannel/internal/test/managertest"
	"flannel/subnet"
)

// These tests mostly wait, also for a server: more of them at once than there are processors.
func TestMain(m *testing.M) {
	flag.Parse()
	// The fuzzer would start as many processes.
	if fuzzed := flag.Lookup("test.fuzz").Value.String(); fuzzed == "" {
		if err := flag.Set("test.parallel", "12"); err != nil {
			panic(err)
		}
	}
	os.Exit(kubetest.Main(m))
}

const prefix = "flannel.alpha.coreos.com/"

const mac1, mac2 = `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}`

var tenNet = subnet.Config{V4: subnet.Network{Prefix: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24}}

var dualNet = subnet.Config{V4: tenNet.V4, V6: subnet.Network{Prefix: netip.MustParsePrefix("fd00:244::/48"), SubnetLen: 64}}

// traffic counts what goes over the wire.
type traffic struct {
	rt       http.RoundTripper
	received atomic.Int64 // bytes of bodies
	// intercept stands between the manager and the server, if it is not nil. It may delay and answer, too.
	intercept interceptor
	mu        sync.Mutex
	requests  []string // "PATCH /api/v1/nodes/one/status?resourceVersion=7", in words instead of escapes
}

func (c *traffic) RoundTrip(r *http.Request) (*http.Response, error) {
	line := r.Method + " " + r.URL.Path
	if query, _ := url.QueryUnescape(r.URL.RawQuery); query != "" {
		line += "?" + query
	}
	c.mu.Lock()
	c.requests = append(c.requests, line)
	rt := c.rt
	c.mu.Unlock()
	var resp *http.Response
	var err error
	if c.intercept != nil {
		resp, err = c.intercept(r, rt)
	} else {
		resp, err = rt.RoundTrip(r)
	}
	if err == nil {
		resp.Body = &counted{resp.Body, &c.received}
	}
	return resp, err
}

func (c *traffic) count(part string) int { return len(c.matching(part)) }

// matching are the requests of which a part is that text, in their order.
func (c *traffic) matching(part string) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		if strings.Contains(r, part) {
			all = append(all, r)
		}
	}
	return all
}

type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// member is a manager under test and what it has told.
type member struct {
	*Manager
	*managertest.Recorder
	t       *testing.T
	server  *kubetest.Server
	logs    *logtest.Log
	traffic *traffic
	scope   string // other nodes than those that begin so do not count
}

// start makes a manager for a node, with a token as flannel's pod has it; change may alter its options.
func start(t *testing.T, s *kubetest.Server, name string, change func(*Options)) *member {
	t.Helper()
	return startWith(t, s, name, change, nil)
}

type interceptor func(r *http.Request, next http.RoundTripper) (*http.Response, error)

func startWith(t *testing.T, s *kubetest.Server, name string, change func(*Options), intercept interceptor) *member {
	t.Helper()
	scope, _, _ := strings.Cut(name, "-")
	n := &member{t: t, scope: scope, server: s, logs: &logtest.Log{}, traffic: &traffic{intercept: intercept}}
	o := Options{NodeName: name, Prefix: prefix, SetCondition: true, UserAgent: "flanneld/test",
		Log: n.logs.Logger()}
	if change != nil {
		change(&o)
	}
	if o.Kubeconfig == "" {
		o.Kubeconfig, _ = s.Kubeconfig(s.Token(name), "")
	}
	o.wrap = func(rt http.RoundTripper) http.RoundTripper { n.traffic.rt = rt; return n.traffic }
	m, err := New(t.Context(), o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	n.listen(m)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, n.logs)
		}
	})
	return n
}

func (n *member) listen(m *Manager) {
	n.Manager = m
	n.Recorder = managertest.NewRecorder(n.t, m, func(name string) (short string, counts bool) { return name, strings.HasPrefix(name, n.scope) })
}

// described is what a node publishes when its lease is l.
func described(l subnet.Lease, ip, data string) subnet.Lease {
	l.Backend = "vxlan"
	l.V4.PublicIP, l.V4.Data = netip.MustParseAddr(ip), []byte(data)
	if l.V6.On() {
		l.V6.PublicIP, l.V6.Data = netip.MustParseAddr("2001:db8::"+ip[strings.LastIndex(ip, ".")+1:]), []byte(data)
	}
	return l
}

// join acquires and publishes, as the daemon does.
func (n *member) join(cfg subnet.Config, ip, data string) subnet.Lease {
	n.t.Helper()
	l, err := n.Acquire(n.t.Context(), cfg, subnet.Lease{})
	if err != nil {
		n.t.Fatalf("Acquire: %v", err)
	}
	l = described(l, ip, data)
	if err := n.Publish(n.t.Context(), l); err != nil {
		n.t.Fatalf("Publish: %v", err)
	}
	return l
}

// outside is the administrator's view.
type outside struct {
	t testing.TB
	*kubetest.Server
}

func (o outside) node(name string) *corev1.Node {
	o.t.Helper()
	n, err := o.Client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		o.t.Fatalf("get node: %v", err)
	}
	return n
}

// condition is the one that we write, zero if the Node has none.
func (o outside) condition(name string) corev1.NodeCondition {
	o.t.Helper()
	for _, c := range o.node(name).Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// annotate sets annotations, by their names without prefix; an empty value takes one away.
func (o outside) annotate(name string, pairs ...string) {
	o.t.Helper()
	values := map[string]*string{}
	for i := 0; i < len(pairs); i += 2 {
		values[prefix+pairs[i]] = nil
		if pairs[i+1] != "" {
			values[prefix+pairs[i]] = &pairs[i+1]
		}
	}
	raw, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}})
	if _, err := o.Client.CoreV1().Nodes().Patch(context.Background(), name, types.StrategicMergePatchType, raw, metav1.PatchOptions{}); err != nil {
		o.t.Fatalf("annotate: %v", err)
	}
}

// peer makes a Node that has described itself.
func (o outside) peer(name, cidr, ip string) {
	o.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "backend-data": mac1, prefix + "public-ip": ip}}}
	if cidr != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
	}
	if _, err := o.Client.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{}); err != nil {
		o.t.Fatalf("create node: %v", err)
	}
}

func (o outside) remove(name string) {
	o.t.Helper()
	if err := o.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		o.t.Fatalf("delete node: %v", err)
	}
}

// heartbeat is an update of a node's status that says nothing to us.
func (o outside) heartbeat(name string, i int) {
	o.t.Helper()
	raw := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"beat%d","lastHeartbeatTime":%q}]}}`, i, time.Now().Format(time.RFC3339))
	if _, err := o.Client.CoreV1().Nodes().Patch(context.Background(), name, types.StrategicMergePatchType, []byte(raw), metav1.PatchOptions{}, "status"); err != nil {
		o.t.Fatalf("heartbeat: %v", err)
	}
}

// ours are the Node's annotations with our prefix, as "name=value" lines.
func (o outside) ours(name string) string {
	o.t.Helper()
	var lines []string
	annotations := o.node(name).Annotations
	for i := range annotationCount {
		if v, ok := annotations[prefix+annotationNames[i]]; ok {
			lines = append(lines, annotationNames[i]+"="+v)
		}
	}
	return strings.Join(lines, "\n")
}

// offline is a manager whose API server is a function. setCondition is Options.SetCondition.
func offline(t *testing.T, setCondition bool, answer func(*http.Request) (code int, body []byte)) *Manager {
	t.Helper()
	o := Options{APIURL: "http://127.0.0.1:1", NodeName: "own", Prefix: prefix, SetCondition: setCondition}
	o.wrap = func(http.RoundTripper) http.RoundTripper {
		return &traffic{intercept: func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			code, body := answer(r)
			return &http.Response{StatusCode: code, Request: r, Header: http.Header{"Content-Type": {protobuf}}, Body: io.NopCloser(bytes.NewReader(body))}, nil
		}}
	}
	m, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// toSlice is for a feed.
func toSlice(told *[]change) func(context.Context, []change) error {
	return func(_ context.Context, changes []change) error {
		*told = append(*told, changes...)
		return nil
	}
}

// annotated returns annotations from pairs of names and values.
func annotated(pairs ...string) (n annotations) {
	for i := 0; i < len(pairs); i += 2 {
		n[slices.Index(annotationNames[:], pairs[i])] = pairs[i+1]
	}
	return n
}
