package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"

	"flannel/pkg/dataplane"
	"flannel/pkg/plan"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

func viewed(peers ...*subnet.Lease) *pass {
	addr := netip.MustParseAddr("192.168.0.1")
	n := &node{
		config:  subnet.Config{Backend: "vxlan", V4: subnet.Network{Prefix: netip.MustParsePrefix("10.0.0.0/8")}},
		host:    host{link: underlay.Link{Name: "eth0", Index: 2, MTU: 1500, V4: addr}},
		lease:   subnet.Lease{Backend: "vxlan", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.0.1.0/24"), PublicIP: addr, Data: []byte(`{"VNI":1}`)}},
		backend: namedBackend{"vxlan"},
	}
	n.plan = plan.New(n.config, n.lease, n.backend)
	return &pass{node: n, links: dataplane.Links{"flannel.1": {Index: 7, MTU: 1450}, "eth0": {Index: 2, MTU: 1500}}, known: true,
		set: subnet.Set{Leases: peers}, took: time.Millisecond}
}

// shows has the parts of a new daemon report a pass, and returns what a Board of nothing but its view shows.
func (p *pass) shows(t *testing.T, s Settings) status.Report {
	t.Helper()
	d, _, _ := newDaemon(t)
	d.Settings, p.told = s, nil
	d.newLoop(p.node, newInbox()).report(p)
	return d.view.now()
}

func leaseAt(i int, backend string) *subnet.Lease {
	a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
	return &subnet.Lease{Name: fmt.Sprint("node", i), Backend: backend,
		V4: subnet.Endpoint{Subnet: netip.PrefixFrom(a, 24), PublicIP: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}}
}

// now returns what a Board of nothing but the view reports.
func (v *view) now() status.Report {
	var b status.Board
	b.Add(status.OfNode, func(r *status.Report) { v.fill(status.OfNode, r) })
	b.Add(status.OfPeers, func(r *status.Report) { v.fill(status.OfPeers, r) })
	return b.Now()
}

func TestView(t *testing.T) {
	var v view
	if r := v.now(); r.Node != nil || r.PeersKnown || r.Peers == nil || r.Errors == nil {
		t.Errorf("before the first pass: %+v", r)
	}
	p := viewed(leaseAt(2, "vxlan"), leaseAt(3, ""), leaseAt(4, "vxlan"))
	settings := Settings{SubnetFile: "/x/subnet.env", IPMasq: true}
	p.rejects = []subnet.Rejected{{Name: "node4", Reason: "bad"}, {Name: "key", Reason: "no lease"}}
	states := func(r status.Report) string {
		var all []string
		for _, p := range r.Peers {
			all = append(all, p.Name+" "+string(p.State)+" "+p.Reason)
		}
		return strings.Join(all, "; ")
	}
	r := p.shows(t, settings)
	if got := states(r); got != "node2 in-step ; node3 silent ; node4 left-out bad; key left-out no lease" {
		t.Error(got)
	}
	if r.Retained != nil {
		t.Errorf("retained: %+v", r.Retained)
	}
	soon, later := time.Now().Add(time.Minute), time.Now().Add(time.Hour)
	p.set.Retained = []*subnet.Retained{{Lease: p.set.Leases[0], Until: later, Cause: subnet.StoreReplaced}, {Lease: p.set.Leases[2], Until: soon, Cause: subnet.MassWithdrawal}}
	r = p.shows(t, settings)
	if got := states(r); got != "node2 retained ; node3 silent ; node4 left-out bad; key left-out no lease" {
		t.Error(got)
	}
	if *r.Retained != (status.Retained{Count: 2, Cause: "mass-withdrawal", Until: soon}) || !r.Peers[0].Until.Equal(later) {
		t.Errorf("retained: %+v, the first until %v", r.Retained, r.Peers[0].Until)
	}
	p.set.Retained = nil
	got := r.Node
	want := &status.Node{Backend: "vxlan", MTU: 1500, IPMasq: true, SubnetFile: "/x/subnet.env", LastPass: got.LastPass, Took: status.Duration(time.Millisecond),
		Networks: []status.Network{{Network: p.config.V4.Prefix, Subnet: p.lease.V4.Subnet, PublicIP: p.host.link.V4, Data: []byte(`{"VNI":1}`)}},
		Underlay: status.Underlay{Name: "eth0", Index: 2, MTU: 1500, Addrs: []netip.Addr{p.host.link.V4}},
		Devices:  []status.Device{{Name: "eth0", Index: 2, MTU: 1500}, {Name: "flannel.1", Index: 7, MTU: 1450}}}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if r.Advice != "" {
		t.Errorf("advice where none is needed: %s", r.Advice)
	}
	p.backend, p.set.Windows, p.failed = mixedBackend{}, "win1", failures{{partPaths, errors.New("no")}}
	if r = p.shows(t, settings); !strings.HasPrefix(r.Advice, "win1 runs Windows") || !strings.HasSuffix(r.Advice, "Set VNI.") {
		t.Errorf("advice: %q", r.Advice)
	}
	if got := states(r); !strings.HasPrefix(got, "node2 behind ; node3 silent ; node4 left-out") {
		t.Error(got)
	}
}

// countingKernel has something of everything that a dataplane reports.
type countingKernel struct {
	plainKernel
	traffic map[netip.Prefix]dataplane.TunnelReport
}

func (countingKernel) Guarded() *dataplane.GuardReport                    { return &dataplane.GuardReport{Enforce: true} }
func (countingKernel) Forwarded() *dataplane.Forwarded                    { return &dataplane.Forwarded{} }
func (countingKernel) PodsWithoutEndpoint() []string                      { return []string{"default/web"} }
func (k countingKernel) Traffic() map[netip.Prefix]dataplane.TunnelReport { return k.traffic }

// expiring is a store whose lease ends.
type expiring struct {
	reportedState
	at time.Time
}

func (e *expiring) Expires() time.Time { return e.at }

// What each part knows is in the report, beside what the last pass left.
func TestParts(t *testing.T) {
	d, _, _ := newDaemon(t)
	peer, ends := leaseAt(2, "vxlan"), time.Now().Add(time.Hour)
	store := &expiring{at: ends}
	d.Manager, d.Dataplane = store, countingKernel{traffic: map[netip.Prefix]dataplane.TunnelReport{peer.V4.Subnet: {Sent: 7}}}
	AddDataplane(d.Board, d.Dataplane)
	d.addToBoard()
	if r := d.Board.Now(); r.Node != nil || len(r.Peers) > 0 {
		t.Errorf("before the first pass: %+v", r)
	}
	p := viewed(peer)
	p.valid, p.rejects = 1, []subnet.Rejected{{Name: "key", Reason: "no lease"}}
	d.newLoop(p.node, newInbox()).report(p)
	r := d.Board.Now()
	if r.Guard == nil || r.Forwarded == nil || len(r.LostPods) != 1 || !r.LeaseExpires.Equal(ends) || r.Node == nil || !r.Ready {
		t.Errorf("not all parts are in the report: %+v", r)
	}
	if got := store.last; len(got.LostPods) != 1 || len(got.Rejects) != 1 || got.Problem != nil {
		t.Errorf("the store has %+v", got)
	}
	if len(r.Peers) != 2 || len(r.Peers[0].Tunnels) != 1 || r.Counts != (status.Counts{Used: 1, Rejected: 1}) {
		t.Errorf("peers: %+v, %+v", r.Peers, r.Counts)
	}
}

// encryptingBackend is ipsec with Backend.UDPEncap.
type encryptingBackend struct{ namedBackend }

func (encryptingBackend) Devices(subnet.Lease) []dataplane.Device {
	return []dataplane.Device{{Name: "eth0", Kind: dataplane.IPsec{UDPEncap: true}}}
}

// The doctor needs to know in which form ESP is sent.
func TestViewOfIPsec(t *testing.T) {
	for _, want := range []bool{false, true} {
		p := viewed()
		if want {
			p.backend = encryptingBackend{namedBackend{"ipsec"}}
		}
		if r := p.shows(t, Settings{}); r.Node.UDPEncap != want {
			t.Errorf("UDPEncap is %t, want %t", r.Node.UDPEncap, want)
		}
	}
}

func TestViewRemembersErrors(t *testing.T) {
	var v view
	v.set(nil, failures{{"peers", errNoPeers}, {"publish", errNotPublished}}) // waiting is no error
	for range 3 {
		v.set(nil, failures{{"firewall", errors.New("often")}, {"dataplane", errors.New("x" + strings.Repeat("ä", maxErrorText))}})
	}
	for i := range maxErrors - 1 {
		v.set(nil, failures{{"devices", fmt.Errorf("error %d", i)}})
	}
	v.set(nil, failures{{"firewall", errors.New("often")}})
	errs := v.lastErrors()
	if len(errs) != maxErrors {
		t.Fatalf("%d errors are kept", len(errs))
	}
	last, long := errs[maxErrors-1], errs[0]
	// The one that happens often was pushed out by others before, and begins anew.
	if last.Part != "firewall" || last.Count != 1 || long.Part == "firewall" {
		t.Errorf("first %v, last %v", long.Part, last)
	}
	v.set(nil, failures{{"firewall", errors.New("often")}})
	errs = v.lastErrors()
	if last := errs[maxErrors-1]; last.Count != 2 || last.First.After(last.Last) {
		t.Errorf("met twice: %+v", last)
	}
	for _, e := range errs {
		if len(e.Text) > maxErrorText || strings.ContainsRune(e.Text, '\ufffd') {
			t.Errorf("kept %d bytes", len(e.Text))
		}
	}
}

// manyPeers are 10,000.
func manyPeers() *pass {
	p := viewed()
	for i := range 10_000 {
		p.set.Leases = append(p.set.Leases, leaseAt(i, "vxlan"))
	}
	return p
}

// maxAllocs limits what the report of a pass may cost. It is more than the present cost, but less than twice as much.
const maxAllocs = 25

// With 10,000 peers, a pass copies none of them for the answer.
func TestViewOfManyPeers(t *testing.T) {
	d, _, _ := newDaemon(t)
	few, many := viewed(), manyPeers()
	cost := func(p *pass) float64 {
		l := d.newLoop(p.node, newInbox())
		return testing.AllocsPerRun(100, func() {
			p.told = nil
			l.report(p)
		})
	}
	// Each part that says something leaves a function.
	if a, b := cost(few), cost(many); b > a || b > maxAllocs {
		t.Errorf("a pass costs %v allocations, and %v without peers, want %d at most", b, a, maxAllocs)
	}
	r := d.view.now()
	if raw, err := json.Marshal(r); err != nil || len(r.Peers) != 10_000 {
		t.Errorf("%d peers in %d bytes, %v", len(r.Peers), len(raw), err)
	}
}

// What a pass leaves for the Board does not have the former leases, which the changes of the set have.
func TestViewKeepsNoFormerLeases(t *testing.T) {
	d, _, _ := newDaemon(t)
	former := weak.Make(reportChange(d))
	runtime.GC()
	if former.Value() != nil {
		t.Error("a lease that was replaced is kept until the next pass")
	}
	if r := d.view.now(); len(r.Peers) != 1 {
		t.Errorf("the peers are %+v", r.Peers)
	}
}

// reportChange has the parts report a pass with a peer whose lease has changed, and returns the former lease.
func reportChange(d *Daemon) *subnet.Lease {
	former, peer := leaseAt(2, "vxlan"), leaseAt(2, "vxlan")
	p := viewed(peer)
	p.set.Changes = []reconcile.Change[subnet.Lease]{{Old: former, New: peer}}
	d.newLoop(p.node, newInbox()).report(p)
	return former
}

// slowLog records at each line whether the node was ready.
type slowLog struct {
	slog.Handler
	board *status.Board
	ready []bool
}

func (l *slowLog) Handle(context.Context, slog.Record) error {
	l.ready = append(l.ready, l.board.Now().Ready)
	return nil
}

// Neither readiness nor the store waits for the log.
func TestReportsBeforeItLogs(t *testing.T) {
	d, _, log := newDaemon(t)
	store := &reportedState{}
	slow := &slowLog{Handler: log.Logger().Handler(), board: d.Board}
	d.Log, d.Manager = slog.New(slow), store
	p := viewed(leaseAt(2, "vxlan"))
	p.backend, p.set.Windows, p.rejects = mixedBackend{}, "win1", []subnet.Rejected{{Name: "key", Reason: "no lease"}}
	d.newLoop(p.node, newInbox()).report(p)
	if len(slow.ready) != 3 || slices.Contains(slow.ready, false) { // the reject, the advice, and that the network is up to date
		t.Errorf("ready when lines are logged: %v", slow.ready)
	}
	if len(store.last.Rejects) != 1 || store.last.Advice == "" {
		t.Errorf("the store has %+v", store.last)
	}
}

func BenchmarkAnswer(b *testing.B) {
	var v view
	p := manyPeers()
	p.tellNode(Settings{})
	tellPeers(p)
	v.set(p.told, nil)
	for b.Loop() {
		if _, err := json.Marshal(v.now()); err != nil {
			b.Fatal(err)
		}
	}
}
