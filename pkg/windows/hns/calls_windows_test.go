package hns_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/Microsoft/hcsshim/hcn"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

var (
	pfx  = netip.MustParsePrefix
	ip   = netip.MustParseAddr
	same = []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}
)

// machine is a simulated one within this process, which the simulator's DLLs reach over TCP: what the calls for Windows
// say can be compared with what the machine has.
func machine(t *testing.T) *hnstest.Machine {
	t.Helper()
	m := hnstest.NewFor(t)
	wine.Play(t, m)
	t.Cleanup(func() { eventually.True(t, "all handles closed", func() bool { return m.OpenHandles() == 0 }) })
	return m
}

func open(t *testing.T) (*hnstest.Machine, *hns.Client) {
	t.Helper()
	m := machine(t)
	return m, client(t)
}

func client(t *testing.T) *hns.Client {
	t.Helper()
	calls, err := hns.Open()
	if err != nil {
		t.Fatal(err)
	}
	return hns.NewClient(calls, hns.Timing{})
}

func overlay(name string) hns.Network {
	return hns.Network{Name: name, Type: hns.Overlay, Adapter: "Ethernet", NonPersistent: true,
		Subnets: []hns.Subnet{{Prefix: pfx("10.244.5.0/24"), Gateway: ip("10.244.5.1"), VSID: 70000}}}
}

func subnets(n int) (all []hns.Policy) {
	for i := range n {
		all = append(all, hns.RemoteSubnet{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i/256), byte(i), 0}), 24), VSID: 70000,
			Provider: ip("10.99.0.3"), MAC: dataplane.MAC{2, 3, 4, 5, 6, 7}}.Policy())
	}
	return all
}

func TestOverlay(t *testing.T) {
	m, c := open(t)
	ctx := t.Context()
	v, err := c.Version(ctx)
	if err != nil || v != (hns.Version{Major: 13, Minor: 3}) || !v.Features().RemoteSubnet {
		t.Error(v, err)
	}
	if _, err := c.Network(ctx, "flannel.70000"); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
	made, err := c.CreateNetwork(ctx, overlay("flannel.70000"))
	if err != nil || made.ID == "" || made.Subnets[0].VSID != 70000 {
		t.Fatal(made, err)
	}
	if err := c.AddPolicies(ctx, made.ID, append(subnets(500), hns.HostRoutePolicy())); err != nil {
		t.Fatal(err)
	}
	got, err := c.Network(ctx, "flannel.70000")
	if err != nil || got.ID != made.ID || !got.HostRoute || got.ManagementIP != hnstest.HostAddr.Addr() || len(got.Policies) < 501 {
		t.Fatalf("%d policies, %+v %v", len(got.Policies), got, err)
	}
	direct, err := hns.NewClient(m, hns.Timing{}).Network(ctx, "flannel.70000")
	if d := cmp.Diff(direct, got, same...); d != "" || err != nil {
		t.Error(d, err)
	}
	var remote []hns.Policy
	for _, p := range got.Policies {
		if p.IsRemoteSubnet() {
			remote = append(remote, p)
		}
	}
	if err := c.RemovePolicies(ctx, made.ID, remote[1:]); err != nil {
		t.Error(err)
	}
	// What is refused is told by its code, and leaves no handle behind.
	for _, refused := range []struct {
		err  error
		want error
		code hns.Code
	}{
		{c.AddPolicies(ctx, made.ID, remote[:1]), hns.ErrExists, hns.PolicyExists},
		{c.RemovePolicies(ctx, made.ID, remote[1:2]), hns.ErrNotFound, hns.PolicyNotFound},
		{c.DeleteNetwork(ctx, "00000000-0000-0000-0000-00000000abcd"), hns.ErrNotFound, hns.NetworkNotFound},
		{c.AddPolicies(ctx, "00000000-0000-0000-0000-00000000abcd", remote), hns.ErrNotFound, hns.NetworkNotFound},
	} {
		var e *hns.Error
		if !errors.Is(refused.err, refused.want) || !errors.As(refused.err, &e) || e.Code != refused.code {
			t.Errorf("%v, want %08x", refused.err, uint32(refused.code))
		}
	}
	if err := c.AddPolicies(ctx, "quite", remote); err == nil || !strings.Contains(err.Error(), `"quite"`) {
		t.Error(err)
	}
	if err := c.DeleteNetwork(ctx, made.ID); err != nil || len(m.Admin().Networks()) != 0 {
		t.Error(err)
	}
}

// A name that is not ASCII comes through unharmed, both ways.
func TestNameInUTF16(t *testing.T) {
	m, c := open(t)
	const name = "Büro – 网 𝄞"
	m.Plug(hns.Adapter{Name: name, Up: true, MTU: 1500, MAC: dataplane.MAC{2, 0, 0, 0, 0, 9}, Addrs: []hns.Address{{Prefix: pfx("10.98.0.2/24"), Preferred: true}}})
	n := overlay(name + " <&>")
	n.Adapter = name
	if _, err := c.CreateNetwork(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Network(t.Context(), n.Name); err != nil || got.Adapter != name {
		t.Error(got, err)
	}
}

func TestBridgeWithHostEndpoint(t *testing.T) {
	m, c := open(t)
	ctx := t.Context()
	n := overlay("cbr0")
	n.Type, n.Subnets[0].VSID = hns.L2Bridge, 0
	made, err := c.CreateNetwork(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Network(ctx, "cbr0"); err != nil || got.ManagementIP != hnstest.HostAddr.Addr() {
		t.Error(got, err)
	}
	want := hns.Endpoint{Name: "cbr0_ep", Network: made.ID, IPs: []netip.Prefix{pfx("10.244.5.2/24")}, Gateways: []netip.Addr{ip("10.244.5.1")}}
	host, err := c.CreateEndpoint(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	// A refusal is one as long as the endpoint is not attached, whatever its text.
	m.Fail(hnstest.Fault{Func: "HNSCall", Match: "/attach", Times: 1, Code: hns.EndpointAttached})
	if err := c.AttachHost(ctx, host.ID); !errors.Is(err, hns.ErrExists) {
		t.Error(err)
	}
	if err := errors.Join(c.AttachHost(ctx, host.ID), c.AttachHost(ctx, host.ID)); err != nil {
		t.Error(err)
	}
	if a := m.Admin().Adapter("vEthernet (cbr0_ep)"); len(a.Addrs) != 1 || a.Addrs[0].Prefix != want.IPs[0] {
		t.Errorf("%+v", a)
	}
	all, err := c.Endpoints(ctx, strings.ToUpper(made.ID))
	if err != nil || len(all) != 1 || all[0].ID != host.ID || all[0].Name != "cbr0_ep" || all[0].IPs[0] != want.IPs[0] {
		t.Error(all, err)
	}
	// The same address again is refused; both handles are closed nevertheless.
	want.Name = "again"
	if _, err := c.CreateEndpoint(ctx, want); err == nil {
		t.Error("an address was given twice")
	}
	if err := c.DeleteEndpoint(ctx, host.ID); err != nil {
		t.Error(err)
	}
	if err := c.AttachHost(ctx, host.ID); !errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
}

func TestServiceInTrouble(t *testing.T) {
	m, c := open(t)
	ctx := t.Context()
	made, err := c.CreateNetwork(ctx, overlay("flannel.70000"))
	if err != nil {
		t.Fatal(err)
	}
	for _, function := range []string{"EnumerateNetworks", "OpenNetwork", "QueryNetworkProperties"} {
		m.Fail(hnstest.Fault{Func: "Hcn" + function, Times: 1, Code: hns.RPCCallFailed})
		if _, err := c.Network(ctx, "flannel.70000"); !errors.Is(err, hns.ErrUnavailable) || !strings.Contains(err.Error(), "Hcn"+function+": ") {
			t.Errorf("%s: %v", function, err)
		}
	}
	// One that is deleted while all are read is no error; that they cannot be read does not say that there are none.
	for _, function := range []string{"HcnOpenNetwork", "HcnQueryNetworkProperties"} {
		m.Fail(hnstest.Fault{Func: function, Times: 2, Code: hns.NetworkNotFound})
		if got, err := c.Network(ctx, "flannel.70000"); err != nil || got.ID != made.ID {
			t.Error(function, got, err)
		}
	}
	m.Fail(hnstest.Fault{Func: "HcnOpenNetwork", Code: hns.NetworkNotFound})
	if _, err := c.Network(ctx, "flannel.70000"); err == nil || errors.Is(err, hns.ErrNotFound) {
		t.Error(err)
	}
	m.Heal()
	m.Fail(hnstest.Fault{Func: "HcnQueryNetworkProperties", Times: 1, Code: hns.RPCCallFailed})
	if _, err := c.CreateNetwork(ctx, overlay("flannel.70001")); !errors.Is(err, hns.ErrUnavailable) {
		t.Error(err)
	}
	m.Fail(hnstest.Fault{Func: "HcnModifyNetwork", Times: 1, Code: 0x80004005})
	if err := c.AddPolicies(ctx, made.ID, subnets(1)); err == nil || !strings.Contains(err.Error(), "HcnModifyNetwork: ") {
		t.Error(err)
	}
	m.Turn(func(k *hnstest.Knobs) { k.Down = true })
	_, err = c.Version(ctx)
	_, err2 := c.Network(ctx, "flannel.70000")
	if !errors.Is(err, hns.ErrUnavailable) || !errors.Is(err2, hns.ErrUnavailable) {
		t.Error(err, err2)
	}
	m.Turn(func(k *hnstest.Knobs) { k.Down = false })
	if got, err := c.Network(ctx, "flannel.70000"); err != nil || got.ID != made.ID {
		t.Error(got, err)
	}
}

// A call that hangs in the DLL blocks nobody, and its handle is closed once it is back.
func TestHangInTheDLL(t *testing.T) {
	m := machine(t)
	calls, err := hns.Open()
	if err != nil {
		t.Fatal(err)
	}
	c := hns.NewClient(calls, hns.Timing{Query: 300 * time.Millisecond})
	if _, err := c.CreateNetwork(t.Context(), overlay("flannel.70000")); err != nil {
		t.Fatal(err)
	}
	m.Fail(hnstest.Fault{Func: "HcnQueryNetworkProperties", Times: 1, Hang: true})
	if _, err := c.Network(t.Context(), "flannel.70000"); !errors.Is(err, hns.ErrTimeout) {
		t.Error(err)
	}
	if _, err := c.Networks(t.Context()); !errors.Is(err, hns.ErrTimeout) {
		t.Error(err)
	}
	m.Heal()
	eventually.True(t, "it works again", func() bool { _, err := c.Network(t.Context(), "flannel.70000"); return err == nil })
}

func TestNotify(t *testing.T) {
	m, c := open(t)
	changes := c.Changes(t.Context())
	told := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(2 * time.Minute):
			t.Fatalf("not told of %s", what)
		}
		for { // one change may be told as two
			select {
			case <-changes:
			case <-time.After(200 * time.Millisecond):
				return
			}
		}
	}
	told("the beginning")
	document, err := hns.EncodeNetwork(overlay("another's"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Admin().CreateNetwork(string(document)); err != nil {
		t.Fatal(err)
	}
	told("a network made by another hand")
	m.Restart()
	told("a restart, which took the network along")
	eventually.True(t, "registered again", func() bool { return m.OpenHandles() == 1 })
	time.Sleep(200 * time.Millisecond) // and told of that, usually
	for len(changes) > 0 {
		<-changes
	}
	if err := m.Admin().CreateNetwork(string(document)); err != nil {
		t.Fatal(err)
	}
	told("a network made after the restart")
}

// TestHcsshim has Microsoft's library read what we wrote, and reads what it wrote.
func TestHcsshim(t *testing.T) {
	_, c := open(t)
	ctx := t.Context()
	n := overlay("flannel.4096")
	n.Subnets[0].VSID, n.MACs = 4096, [2]dataplane.MAC{{14, 42}, {14, 42, 255, 255, 255, 255}}
	made, err := c.CreateNetwork(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddPolicies(ctx, made.ID, []hns.Policy{{Type: "RemoteSubnetRoute", Settings: json.RawMessage(
		`{"DestinationPrefix":"10.244.7.0/24", "IsolationId":4096,"ProviderAddress":"10.99.0.3","DistributedRouterMacAddress":"A2-0B-CC-DD-EE-01"}`)}}); err != nil {
		t.Fatal(err)
	}
	theirs, err := hcn.GetNetworkByName("flannel.4096")
	if err != nil {
		t.Fatal(err)
	}
	if theirs.Type != hcn.Overlay || theirs.Flags != hcn.EnableNonPersistent || len(theirs.Ipams) != 1 || theirs.SchemaVersion != hcn.V2SchemaVersion() ||
		theirs.Ipams[0].Subnets[0].Routes[0].NextHop != "10.244.5.1" || theirs.MacPool.Ranges[0].EndMacAddress != "0E-2A-FF-FF-FF-FF" {
		t.Errorf("%+v", theirs)
	}
	settings := hcn.RemoteSubnetRoutePolicySetting{DestinationPrefix: "10.244.8.0/24", IsolationId: 4096, ProviderAddress: "10.99.0.5", DistributedRouterMacAddress: "a2:0b:cc:dd:ee:03"}
	raw, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.AddPolicy(hcn.PolicyNetworkRequest{Policies: []hcn.NetworkPolicy{{Type: hcn.RemoteSubnetRoute, Settings: raw}}}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Network(ctx, "flannel.4096")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range got.Policies {
		if r, err := p.RemoteSubnet(); err == nil {
			found = append(found, r.Prefix.String()+" "+r.Provider.String()+" "+r.MAC.String())
		}
	}
	if want := "10.244.7.0/24 10.99.0.3 a2:0b:cc:dd:ee:01, 10.244.8.0/24 10.99.0.5 a2:0b:cc:dd:ee:03"; strings.Join(found, ", ") != want {
		t.Errorf("%s\nwant %s", found, want)
	}
	for _, p := range theirs.Policies {
		if p.Type == hcn.RemoteSubnetRoute && !strings.Contains(string(p.Settings), `10.99.0.3`) {
			t.Errorf("%s", p.Settings)
		}
	}
}

// The older API lists a network that hcn does not, and deletes it.
func TestGhosts(t *testing.T) {
	m, c := open(t)
	m.Turn(func(k *hnstest.Knobs) { k.GhostNetwork = true })
	if _, err := c.CreateNetwork(t.Context(), overlay("flannel.70000")); err != nil {
		t.Fatal(err)
	}
	if ghosts, err := c.Ghosts(t.Context()); err != nil || len(ghosts) != 0 {
		t.Errorf("got %+v, %v", ghosts, err)
	}
	if err := m.Admin().Ghost("flannel.70000"); err != nil {
		t.Fatal(err)
	}
	ghosts, err := c.Ghosts(t.Context())
	if err != nil || len(ghosts) != 1 || ghosts[0].Name != "flannel.70000" || ghosts[0].Type != hns.Overlay {
		t.Fatalf("got %+v, %v", ghosts, err)
	}
	if err := c.DeleteGhost(t.Context(), ghosts[0].ID); err != nil || len(m.Admin().Networks()) != 0 {
		t.Errorf("%s remain, %v", m.Admin().Networks(), err)
	}
}
