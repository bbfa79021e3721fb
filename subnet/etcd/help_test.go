package etcd

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/backend"
	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/managertest"
	"flannel/pkg/conf"
	"flannel/pkg/plan"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// These tests mostly wait: more of them at once than there are processors.
func TestMain(m *testing.M) {
	if endpoint := os.Getenv(observedEndpoint); endpoint != "" {
		runObserved(endpoint)
	}
	flag.Parse()
	// The fuzzer would start as many processes.
	if fuzzed := flag.Lookup("test.fuzz").Value.String(); fuzzed == "" {
		if err := flag.Set("test.parallel", "12"); err != nil {
			panic(err)
		}
	}
	m.Run()
}

const base = "/coreos.com/network"

// node is a manager under test and what it has told.
type node struct {
	*Manager
	*managertest.Recorder
	t    *testing.T
	logs *logtest.Log
}

// start makes a manager; change may alter its options.
func start(t *testing.T, endpoint string, change func(*Options)) *node {
	t.Helper()
	n := &node{t: t, logs: &logtest.Log{}}
	o := Options{Endpoints: []string{endpoint}, Log: n.logs.Logger()}
	if change != nil {
		change(&o)
	}
	m, err := New(t.Context(), o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	n.Manager = m
	n.Recorder = managertest.NewRecorder(t, m, func(key string) (short string, counts bool) { return strings.TrimPrefix(key, base+"/subnets/"), true })
	t.Cleanup(func() {
		m.Close()
		if t.Failed() {
			t.Logf("log:\n%s", n.logs)
		}
	})
	return n
}

var tenNet = subnet.Config{V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24,
	Min: addr("10.5.1.0"), Max: addr("10.5.255.0")}}

var cafeNet = subnet.Network{Prefix: netip.MustParsePrefix("2001:cafe:42::/56"), SubnetLen: 64,
	Min: addr("2001:cafe:42:1::"), Max: addr("2001:cafe:42:ff::")}

// at is what a node with that public address wants, and no more.
func at(ip string) subnet.Lease { return subnet.Lease{V4: subnet.Endpoint{PublicIP: addr(ip)}} }

// outOfTheWay is at with a subnet that no other node of a test has.
func outOfTheWay(ip string) subnet.Lease {
	l := at(ip)
	l.V4.Subnet = netip.MustParsePrefix("10.5.250.0/24")
	return l
}

func (n *node) acquire(want subnet.Lease) subnet.Lease {
	n.t.Helper()
	l, err := n.Acquire(n.t.Context(), tenNet, want)
	if err != nil {
		n.t.Fatalf("Acquire: %v", err)
	}
	return l
}

const (
	mac1 = `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`
	mac2 = `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}`
	mac3 = `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:46"}`
)

// publish acquires and describes, as the daemon does.
func (n *node) publish(want subnet.Lease, data string) subnet.Lease {
	n.t.Helper()
	l := n.acquire(want)
	l.Backend, l.V4.Data = "vxlan", []byte(data)
	if err := n.Publish(n.t.Context(), l); err != nil {
		n.t.Fatalf("Publish: %v", err)
	}
	return l
}

// lost waits for Hold to say that the lease is lost.
func (n *node) lost(within time.Duration) {
	n.t.Helper()
	start := time.Now()
	select {
	case err := <-n.Held:
		if !errors.Is(err, subnet.ErrLost) {
			n.t.Fatalf("Hold returned %v", err)
		}
		n.t.Logf("%v: after %v", err, time.Since(start).Round(time.Millisecond))
	case <-time.After(within):
		n.t.Fatalf("Hold has not noticed within %v", within)
	}
}

func (n *node) notLost() {
	n.t.Helper()
	select {
	case err := <-n.Held:
		n.t.Fatalf("Hold returned %v", err)
	default:
	}
}

// store is the view from outside.
type store struct {
	*clientv3.Client
	t *testing.T
}

func outside(t *testing.T, s *etcdtest.Server) store { return store{s.Client(), t} }

func (s store) put(name, value string, opts ...clientv3.OpOption) {
	s.t.Helper()
	if _, err := s.Put(s.t.Context(), base+"/"+name, value, opts...); err != nil {
		s.t.Fatalf("put %s: %v", name, err)
	}
}

func (s store) remove(name string) {
	s.t.Helper()
	if _, err := s.Delete(s.t.Context(), base+"/"+name); err != nil {
		s.t.Fatalf("delete %s: %v", name, err)
	}
}

// value of a key by its full name, "" if it is missing, and the etcd lease that it hangs on.
func (s store) value(key string) (string, clientv3.LeaseID) {
	s.t.Helper()
	resp, err := s.Get(s.t.Context(), key)
	if err != nil {
		s.t.Fatalf("get %s: %v", key, err)
	}
	if len(resp.Kvs) == 0 {
		return "", 0
	}
	return string(resp.Kvs[0].Value), clientv3.LeaseID(resp.Kvs[0].Lease)
}

// renewed waits until an etcd lease, which must not end meanwhile, has been renewed so many times.
func (s store) renewed(id clientv3.LeaseID, times int) {
	s.t.Helper()
	var last int64
	eventually.True(s.t, fmt.Sprintf("renewed %d times", times), func() bool {
		time.Sleep(100 * time.Millisecond) // far less than between two renewals
		now := s.left(id)
		if last > 0 && now > last+1 { // it is told in whole seconds
			times--
		}
		last = now
		return times == 0
	})
}

// left is how many seconds an etcd lease still has.
func (s store) left(id clientv3.LeaseID) int64 {
	s.t.Helper()
	ttl, err := s.TimeToLive(s.t.Context(), id)
	if err != nil || ttl.TTL <= 0 {
		s.t.Fatalf("the lease is gone: %+v, %v", ttl, err)
	}
	return ttl.TTL
}

func (s store) etcdLeases() int {
	s.t.Helper()
	resp, err := s.Client.Lease.Leases(s.t.Context())
	if err != nil {
		s.t.Fatalf("list etcd leases: %v", err)
	}
	return len(resp.Leases)
}

// leavesNone calls lose, after which a node holds no key any more, until lose leaves no etcd lease over. It may leave one on
// a machine that stands still: a node tries once to revoke its etcd lease, for a second, since it expires anyway.
func (s store) leavesNone(what string, lose func()) {
	s.t.Helper()
	eventually.True(s.t, what+" leaves no etcd lease over", func() bool {
		before := s.etcdLeases()
		lose()
		return s.etcdLeases() == before
	})
}

// peer is the value of a node that has described itself.
func peer(ip string) string {
	return `{"PublicIP":"` + ip + `","PublicIPv6":null,"BackendType":"vxlan","BackendData":` + mac1 + `}`
}

// peerOf is peer with another VTEP for each number, as peers really have, and with the
// same one for IPv6 if there is an address.
func peerOf(ip, ip6 string, number int) string {
	six, data6 := "null", ""
	if ip6 != "" {
		six, data6 = `"`+ip6+`"`, `,"BackendV6Data":`+vtep(number)
	}
	return `{"PublicIP":"` + ip + `","PublicIPv6":` + six + `,"BackendType":"vxlan","BackendData":` + vtep(number) + data6 + `}`
}

func vtep(number int) string { return fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:00:%02x"}`, number) }

// judge returns the Judge that the daemon of the node with 10.5.250.0/24 at
// 192.168.64.99 has.
func judge(t *testing.T) subnet.Judge {
	t.Helper()
	b, _, err := backend.KindOf("vxlan").Parse(conf.Parse([]byte(`{}`)), "linux")(backend.Node{V4: true, Underlay: underlay.Link{Name: "eth0", MTU: 1500}})
	if err != nil {
		t.Fatal(err)
	}
	cfg, own := tenNet, outOfTheWay("192.168.64.99")
	cfg.Backend, own.Backend, own.V4.Data = "vxlan", "vxlan", []byte(mac1)
	return plan.New(cfg, own, b).Judge()
}

// addr parses an address; "" is the zero one.
func addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}
