package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/logtest"
	"flannel/subnet"
)

const usualPrefix = kubetest.Prefix

const vtep1, vtep2 = `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}`

// nodeWith returns annotations from pairs of names, without the prefix, and values.
func nodeWith(pairs ...string) (n annotations) {
	for i := 0; i < len(pairs); i += 2 {
		n.set(usualPrefix, usualPrefix+pairs[i], pairs[i+1])
	}
	return n
}

var vxlanAnnotations = []string{"kube-subnet-manager", "true", "backend-type", "vxlan", "backend-data", vtep1, "public-ip", "192.168.0.1"}

var dualAnnotations = append([]string{"backend-v6-data", vtep2, "public-ipv6", "2001:db8::1"}, vxlanAnnotations...)

func show(l *subnet.Lease) string {
	text := l.Name + " " + l.Backend
	for _, e := range l.Endpoints() {
		text += fmt.Sprintf(" | %v at %v %s", e.Subnet, e.PublicIP, e.Data)
	}
	return text
}

func TestLeaseOf(t *testing.T) {
	but := func(pairs ...string) annotations {
		return nodeWith(append(append([]string{}, vxlanAnnotations...), pairs...)...)
	}
	v4, dual := []string{"10.5.1.0/24"}, []string{"10.5.1.0/24", "fd05:1::/64"}
	for _, c := range []struct {
		name  string
		cidrs []string
		notes annotations
		want  string // with "!" before it, what the error names
	}{
		{"IPv4", v4, nodeWith(vxlanAnnotations...), "n vxlan | 10.5.1.0/24 at 192.168.0.1 " + vtep1},
		{"dual-stack", dual, nodeWith(dualAnnotations...), "n vxlan | 10.5.1.0/24 at 192.168.0.1 " + vtep1 + " | fd05:1::/64 at 2001:db8::1 " + vtep2},
		{"the families in the other order", []string{dual[1], dual[0]}, nodeWith(dualAnnotations...),
			"n vxlan | 10.5.1.0/24 at 192.168.0.1 " + vtep1 + " | fd05:1::/64 at 2001:db8::1 " + vtep2},
		{"IPv6", dual[1:], nodeWith(dualAnnotations...), "n vxlan | fd05:1::/64 at 2001:db8::1 " + vtep2},
		{"one family of two is used", dual, nodeWith(vxlanAnnotations...), "n vxlan | 10.5.1.0/24 at 192.168.0.1 " + vtep1},
		{"host-gw", v4, but("backend-type", "host-gw", "backend-data", "null"), "n host-gw | 10.5.1.0/24 at 192.168.0.1 "},
		{"no type, as with flannel's udp", v4, but("backend-type", "", "backend-data", "null"), "n  | 10.5.1.0/24 at 192.168.0.1 "},
		{"no data at all", v4, but("backend-data", ""), "n vxlan | 10.5.1.0/24 at 192.168.0.1 "},
		{"data with spaces", v4, but("backend-data", "{ \"VNI\" :1}\n"), `n vxlan | 10.5.1.0/24 at 192.168.0.1 {"VNI":1}`},
		{"data that is a text", v4, but("backend-data", `"a b"`), `n vxlan | 10.5.1.0/24 at 192.168.0.1 "a b"`},
		{"host bits, which others reject", []string{"10.5.1.7/24"}, nodeWith(vxlanAnnotations...), "n vxlan | 10.5.1.7/24 at 192.168.0.1 " + vtep1},

		{"no annotations", v4, annotations{}, "!" + errNoPeer.Error()},
		{"not managed", v4, but("kube-subnet-manager", "false"), "!" + errNoPeer.Error()},
		{"no podCIDR", nil, nodeWith(vxlanAnnotations...), "!podCIDR"},
		{"no address", v4, but("public-ip", ""), "!public-ip podCIDR"},
		{"garbage for a podCIDR", []string{"garbage" + strings.Repeat("x", 500)}, nodeWith(vxlanAnnotations...), `!podCIDR "garbage` + strings.Repeat("x", 53) + `"`},
		{"IPv4 in IPv6 form", []string{"::ffff:10.5.1.0/120"}, nodeWith(vxlanAnnotations...), `!podCIDR "::ffff:10.5.1.0/120"`},
		{"garbage for an address", v4, but("public-ip", "1.2.3"), `!public-ip "1.2.3" IPv4`},
		{"an address with a zone", dual[1:], nodeWith(append(dualAnnotations, "public-ipv6", "fe80::1%eth0")...), `!public-ipv6 "fe80::1%eth0" IPv6`},
		{"an address of the other family", v4, but("public-ip", "2001:db8::1"), `!public-ip "2001:db8::1" IPv4`},
		{"garbage for data", v4, but("backend-data", `{"VNI":`), `!backend-data "{\"VNI\":" JSON`},
		{"endless data", v4, but("backend-data", `"`+strings.Repeat("x", maxData)+`"`), "!backend-data 16386 16384"},
	} {
		l, err := leaseOf(&storedNode{Name: "n", CIDRs: c.cidrs, Annotations: c.notes})
		if wrong, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !logtest.Names(err.Error(), strings.Fields(wrong)...) {
				t.Errorf("%s: %v, want an error with %s", c.name, err, wrong)
			}
		} else if err != nil || show(l) != c.want {
			t.Errorf("%s:\n%v %v\nwant\n%s", c.name, l, err, c.want)
		}
	}
}

// Leases share the string of their backend type, so that a Node's annotations, of which it may
// be a part, are not kept for each.
func TestSharedBackend(t *testing.T) {
	var data []*byte
	for range 2 {
		l, err := leaseOf(&storedNode{CIDRs: []string{"10.5.1.0/24"}, Annotations: nodeWith(append(vxlanAnnotations, "backend-type", strings.Clone("vxlan"))...)})
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, unsafe.StringData(l.Backend))
	}
	if data[0] != data[1] {
		t.Error("two leases have a string each")
	}
}

func TestPatch(t *testing.T) {
	v4 := subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: netip.MustParseAddr("192.168.0.1"), Data: []byte(vtep1)}
	v6 := subnet.Endpoint{Subnet: netip.MustParsePrefix("fd05:1::/64"), PublicIP: netip.MustParseAddr("2001:db8::1"), Data: []byte(vtep2)}
	one, dual := &subnet.Lease{Backend: "vxlan", V4: v4}, &subnet.Lease{Backend: "vxlan", V4: v4, V6: v6}
	bare := &subnet.Lease{Backend: "host-gw", V4: subnet.Endpoint{Subnet: v4.Subnet, PublicIP: v4.PublicIP}}
	but := func(pairs ...string) annotations {
		return nodeWith(append(append([]string{}, vxlanAnnotations...), pairs...)...)
	}
	const p = `"` + usualPrefix
	full := func(pairs string) string { return `{"metadata":{"annotations":{` + pairs + `}}}` }
	for _, c := range []struct {
		name     string
		lease    *subnet.Lease
		now      annotations
		want     string
		problems string // what they name
	}{
		{"a new node", one, annotations{}, full(p + `backend-data":"{\"VNI\":1,\"VtepMAC\":\"c6:d2:32:6f:8f:44\"}",` + p + `backend-type":"vxlan",` +
			p + `kube-subnet-manager":"true",` + p + `public-ip":"192.168.0.1"`), ""},
		{"nothing differs", one, nodeWith(vxlanAnnotations...), "", ""},
		{"nothing differs, dual", dual, nodeWith(dualAnnotations...), "", ""},
		{"other spaces", one, but("backend-data", "{ \"VNI\": 1, \"VtepMAC\": \"c6:d2:32:6f:8f:44\" }"), "", ""},
		{"another MAC", one, but("backend-data", vtep2), full(p + `backend-data":"{\"VNI\":1,\"VtepMAC\":\"c6:d2:32:6f:8f:44\"}"`), ""},
		{"a backend without data", bare, nodeWith(vxlanAnnotations...), full(p + `backend-data":"null",` + p + `backend-type":"host-gw"`), ""},
		{"one family left", one, nodeWith(dualAnnotations...), full(p + `backend-v6-data":null,` + p + `public-ipv6":null`), ""},
		{"unmanaged by someone else", one, but("kube-subnet-manager", "no"), full(p + `kube-subnet-manager":"true"`), ""},
		{"overwritten", one, but("public-ip-overwrite", "203.0.113.1"), full(p + `public-ip":"203.0.113.1"`), ""},
		{"already overwritten", one, but("public-ip-overwrite", "203.0.113.1", "public-ip", "203.0.113.1"), "", ""},
		{"IPv6 overwritten", dual, nodeWith(append(dualAnnotations, "public-ipv6-overwrite", "2001:db8::78")...), full(p + `public-ipv6":"2001:db8::78"`), ""},
		{"a family that is off", one, but("public-ipv6-overwrite", "2001:db8::78"), "", ""},
		{"overwritten with garbage", one, but("public-ip-overwrite", "here"), "", `public-ip-overwrite "here" IPv4`},
		{"overwritten with no address", one, but("public-ip-overwrite", "0.0.0.0"), "", "public-ip-overwrite 0.0.0.0"},
		{"overwritten with loopback", one, but("public-ip-overwrite", "127.0.0.1"), "", "public-ip-overwrite 127.0.0.1"},
		{"overwritten with broadcast", one, but("public-ip-overwrite", "255.255.255.255"), "", "public-ip-overwrite 255.255.255.255"},
		{"overwritten with link-local", one, but("public-ip-overwrite", "169.254.1.1"), "", "public-ip-overwrite 169.254.1.1"},
		{"IPv6 overwritten with multicast", dual, nodeWith(append(dualAnnotations, "public-ipv6-overwrite", "ff02::1")...), "", "public-ipv6-overwrite ff02::1"},
	} {
		want, problems := describeLease(c.lease, c.now)
		raw, changes := patchOf(usualPrefix, c.now, want)
		if string(raw) != c.want || (len(problems) == 0) != (c.problems == "") || !logtest.Names(strings.Join(problems, "\n"), strings.Fields(c.problems)...) || (raw == nil) != (len(changes) == 0) {
			t.Errorf("%s:\n%s\nwant\n%s\nproblems %q", c.name, raw, c.want, problems)
		}
	}
}

// A lease that was read from annotations, written and read again is the same.
func FuzzAnnotations(f *testing.F) {
	f.Add("10.5.1.0/24", "fd05:1::/64", "true", "vxlan", vtep1, vtep2, "192.168.0.1", "2001:db8::1")
	f.Add("10.5.1.0/24", "", "true", "host-gw", "null", "", "192.168.0.1", "")
	f.Add("x", "::ffff:1.2.3.4/120", "true", "", "{", " [1, 2]", "1.2.3.4.5", "fe80::1%a")
	f.Fuzz(func(t *testing.T, a, b, managed, backend, data, data6, ip, ip6 string) {
		n := &storedNode{Name: "n", CIDRs: []string{a, b}, Annotations: nodeWith("kube-subnet-manager", managed, "backend-type", backend,
			"backend-data", data, "backend-v6-data", data6, "public-ip", ip, "public-ipv6", ip6)}
		if b == "" {
			n.CIDRs = n.CIDRs[:1]
		}
		l, err := leaseOf(n)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("a long error: %q", err)
			}
			return
		}
		want, _ := describeLease(l, n.Annotations)
		raw, _ := patchOf(usualPrefix, n.Annotations, want)
		again, err := leaseOf(&storedNode{Name: "n", CIDRs: n.CIDRs, Annotations: want})
		if err != nil || !again.Equal(l) {
			t.Errorf("%s became %v, %v by %s", show(l), again, err, raw)
		}
		if raw, _ := patchOf(usualPrefix, want, want); raw != nil {
			t.Errorf("a patch without a difference: %s", raw)
		}
	})
}

var sampleNode = &storedNode{Name: "node0", UID: "u-1", Version: "100", Created: 1_700_000_000, CIDRs: []string{"10.5.1.0/24", "fd05:1::/64"}, Annotations: nodeWith(dualAnnotations...), Hostname: "host.example", HasSpec: true}

func TestParseNode(t *testing.T) {
	object, err := unwrap(kubetest.Encode(t, kubetest.Sample(0), "Node"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := parseNode(object, usualPrefix); err != nil || !reflect.DeepEqual(n, sampleNode) {
		t.Errorf("%+v, %v", n, err)
	}
	old := kubetest.Sample(0)
	old.Spec.PodCIDRs = nil
	object, _ = unwrap(kubetest.Encode(t, old, "Node"))
	if n, err := parseNode(object, usualPrefix); err != nil || !reflect.DeepEqual(n.CIDRs, []string{"10.5.1.0/24"}) {
		t.Errorf("%+v, %v", n, err)
	}
	for label, want := range map[string]bool{"windows": true, "linux": false, "windowsx": false} {
		labelled := kubetest.Sample(0)
		labelled.Labels["kubernetes.io/os"], labelled.Labels["zone"] = label, "windows"
		object, _ = unwrap(kubetest.Encode(t, labelled, "Node"))
		if n, err := parseNode(object, usualPrefix); err != nil || n.Windows != want {
			t.Errorf("with the label %s: windows %v, %v", label, n.Windows, err)
		}
	}
	if _, err := unwrap([]byte(`{"kind":"Node"}`)); !errors.Is(err, errNotProtobuf) {
		t.Error(err)
	}
	for _, metadata := range []string{"", "\x0a\x01n\x42\x02\x08\x80"} { // no name; a creationTimestamp that is cut off
		object := append([]byte{0x0a, byte(len(metadata))}, metadata...)
		if n, err := parseNode(object, usualPrefix); err == nil {
			t.Errorf("metadata %q became %+v", metadata, n)
		}
	}
}

func TestParseList(t *testing.T) {
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "4711", Continue: "x"}}
	for i := range 20 {
		list.Items = append(list.Items, *kubetest.Sample(i))
	}
	raw := kubetest.Encode(t, list, "NodeList")
	var got []*storedNode
	version, err := parseList(bytes.NewReader(raw), usualPrefix, func(n *storedNode) { got = append(got, n) })
	if err != nil || version != "4711" || len(got) != 20 || !reflect.DeepEqual(got[0], sampleNode) || got[19].Name != "node19" {
		t.Errorf("%d nodes at %s, %v", len(got), version, err)
	}
	if version, err := parseList(bytes.NewReader(kubetest.Encode(t, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, "NodeList")), usualPrefix, nil); err != nil || version != "1" {
		t.Errorf("an empty list: %q, %v", version, err)
	}
	// A list that is cut off anywhere is an error.
	for end := range len(raw) {
		if end > 200 && end < len(raw)-200 && end%97 != 0 {
			continue
		}
		_, err := parseList(bytes.NewReader(raw[:end]), usualPrefix, func(*storedNode) {})
		if whole := end > len(raw)-5; err == nil && !whole {
			t.Errorf("%d of %d bytes were accepted as a list", end, len(raw))
		}
	}
	if _, err := parseList(strings.NewReader(`{"kind":"NodeList"}`), usualPrefix, nil); !errors.Is(err, errNotProtobuf) {
		t.Errorf("a list in JSON: %v", err)
	}
	reset := errors.New("reset by peer")
	if _, err := parseList(iotest.ErrReader(reset), usualPrefix, nil); !errors.Is(err, reset) || errors.Is(err, errNotProtobuf) {
		t.Errorf("a broken connection: %v", err)
	}
}

func TestReadEvents(t *testing.T) {
	meta := &metav1.PartialObjectMetadata{ObjectMeta: kubetest.Sample(0).ObjectMeta}
	stream := kubetest.Frame(t, "MODIFIED", kubetest.Encode(t, meta, "PartialObjectMetadata"))
	stream = append(stream, kubetest.Frame(t, "ERROR", kubetest.Encode(t, &metav1.Status{Code: 410, Reason: metav1.StatusReasonExpired}, "Status"))...)
	r := newWatchReader(bytes.NewReader(stream))
	e, err := r.Event(usualPrefix)
	want := *sampleNode
	want.CIDRs, want.HasSpec = nil, false
	if err != nil || e.Kind != "MODIFIED" || !reflect.DeepEqual(e.Node, &want) {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err = r.Event(usualPrefix); err != nil || e.Status == nil || e.Status.Code != 410 {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err = r.Event(usualPrefix); err != io.EOF {
		t.Error(err)
	}
	for _, end := range []int{1, 4, 20} { // within the length, behind it, within the WatchEvent
		if _, err = newWatchReader(bytes.NewReader(stream[:end])).Event(usualPrefix); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of a frame: %v", end, err)
		}
	}
	bookmark := kubetest.Encode(t, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}, "PartialObjectMetadata")
	if e, err = newWatchReader(bytes.NewReader(kubetest.Frame(t, "BOOKMARK", bookmark))).Event(usualPrefix); err != nil || e.Node.Version != "7" {
		t.Errorf("a bookmark: %+v, %v", e, err)
	}
	for name, frame := range map[string][]byte{
		"an empty frame": {0, 0, 0, 0}, "no type": kubetest.Frame(t, "", kubetest.Encode(t, meta, "PartialObjectMetadata")), "no bytes of an object": kubetest.Frame(t, "MODIFIED", nil),
		"no object": []byte("\x00\x00\x00\x07\x0a\x05ERROR"), "a Node without a name": kubetest.Frame(t, "MODIFIED", bookmark),
		// The object's bytes are whole, and a field after them is cut off.
		"a broken object": []byte("\x00\x00\x00\x13\x0a\x05ERROR\x12\x0a\x0a\x06k8s\x00\x12\x00\x12\x05"),
	} {
		if e, err := newWatchReader(bytes.NewReader(frame)).Event(usualPrefix); err == nil {
			t.Errorf("%s became %+v", name, e)
		}
	}
}

// Whatever the server sends, decoding returns a result or an error.
func FuzzDecode(f *testing.F) {
	f.Add(kubetest.Encode(f, kubetest.Sample(0), "Node"))
	f.Add(kubetest.Encode(f, &corev1.NodeList{Items: []corev1.Node{*kubetest.Sample(0)}}, "NodeList"))
	f.Add(kubetest.Frame(f, "ADDED", kubetest.Encode(f, kubetest.Sample(0), "Node")))
	f.Add([]byte("\x00\x00\x00\xff"))
	f.Add([]byte("k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")) // a length of 2^64-1
	f.Fuzz(func(t *testing.T, raw []byte) {
		if object, err := unwrap(raw); err == nil {
			_, _ = parseNode(object, usualPrefix)
		}
		if version, err := parseList(bytes.NewReader(raw), usualPrefix, func(*storedNode) {}); err == nil && version == "" {
			t.Error("a list without a version was accepted")
		}
		r := newWatchReader(bytes.NewReader(raw))
		for range 3 {
			if _, err := r.Event(usualPrefix); err != nil {
				break
			}
		}
	})
}

// Compares this package with the generated types: for a Node, a list of 1,000 Nodes,
// and an event of a watch.
func BenchmarkDecodeNode(b *testing.B) {
	one, _ := unwrap(kubetest.Encode(b, kubetest.Sample(0), "Node"))
	event, _ := unwrap(kubetest.Encode(b, &metav1.PartialObjectMetadata{ObjectMeta: kubetest.Sample(0).ObjectMeta}, "PartialObjectMetadata"))
	many := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "4711"}}
	for i := range 1000 {
		many.Items = append(many.Items, *kubetest.Sample(i))
	}
	list := kubetest.Encode(b, many, "NodeList")
	for name, read := range map[string]struct {
		of   []byte
		read func() error
	}{
		"node/by hand":    {one, func() error { _, err := parseNode(one, usualPrefix); return err }},
		"node/generated":  {one, func() error { return new(corev1.Node).Unmarshal(one) }},
		"event/by hand":   {event, func() error { _, err := parseNode(event, usualPrefix); return err }},
		"event/generated": {event, func() error { return new(metav1.PartialObjectMetadata).Unmarshal(event) }},
		"list/by hand": {list, func() error {
			_, err := parseList(bytes.NewReader(list), usualPrefix, func(*storedNode) {})
			return err
		}},
		"list/generated": {list, func() error {
			raw, err := io.ReadAll(bytes.NewReader(list)) // as the client does
			if err == nil {
				raw, err = unwrap(raw)
			}
			return errors.Join(err, new(corev1.NodeList).Unmarshal(raw))
		}},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(read.of)))
			b.ReportAllocs()
			for b.Loop() {
				if err := read.read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The generated types and the decoder here agree about a Node.
func TestOf(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"dual-stack": func(*corev1.Node) {}, "podCIDR alone": func(n *corev1.Node) { n.Spec.PodCIDRs = nil },
		"Windows, without podCIDR": func(n *corev1.Node) {
			n.Labels[corev1.LabelOSStable], n.Spec = "windows", corev1.NodeSpec{ProviderID: "x"}
		},
	} {
		n := kubetest.Sample(1)
		change(n)
		object, err := unwrap(kubetest.Encode(t, n, "Node"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := parseNode(object, usualPrefix)
		if err != nil {
			t.Fatal(err)
		}
		if got := nodeOf(n, usualPrefix); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
