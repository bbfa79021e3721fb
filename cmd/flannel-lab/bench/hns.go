package bench

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/mac"
	hnsplane "flannel/pkg/windows"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

// hnsRows are the rows for a Windows node. Counts are exact. Durations are
// those of the simulated machine, so they only contain our share.
var hnsRows = []row{
	{"", "first sync on a network without policies", "", ""},
	{"hns_first_queries", "queries to HNS", "1", ""},
	{"hns_first_changes", "changing calls of HNS and routes", "⌈n/500⌉", ""},
	{"hns_first_ms", "duration, ms", "", ""},
	{"", "restart with nothing to do", "", ""},
	{"hns_restart_queries", "queries to HNS", "", ""},
	{"hns_restart_changes", "changing calls", "0", ""},
	{"hns_restart_ms", "duration, ms", "", ""},
	{"", "one lease", "", ""},
	{"hns_add_changes", "added: changing calls", "1", ""},
	{"hns_add_ms", "added: duration, ms", "", ""},
	{"hns_remove_changes", "removed: changing calls", "1", ""},
	{"hns_remove_queries", "removed: queries to HNS", "", ""},
	{"", "host-gw", "", ""},
	{"hns_route_ms", "add one host route, ms", "1", ""},
}

// hnsBench is a Windows node on a simulated machine in this process.
type hnsBench struct {
	machine *hnstest.Machine
	client  *hns.Client
	plane   *hnsplane.Driver
	dir     string
	device  dataplane.Device
	encap   func(i int) dataplane.Encap // of the path to peer i
	state   dataplane.State
	figures map[string]float64
}

// measureHNS counts the calls of HNS and of the IP stack on a Windows node.
func measureHNS(ctx context.Context, backend string, peers int) (c column, err error) {
	b := &hnsBench{machine: hnstest.New(), figures: map[string]float64{}, encap: overlayEncap}
	network := dataplane.Network{Parent: "Ethernet", Local: hnstest.HostAddr.Addr(),
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
	b.device = dataplane.Device{Name: "flannel.4096", Kind: dataplane.Overlay{Network: network, VNI: 4096}}
	if backend == "host-gw" {
		b.device, b.encap = dataplane.Device{Name: "cbr0", Kind: dataplane.L2Bridge{Network: network}}, bridgeEncap
	}
	if b.dir, err = os.MkdirTemp("", "flannel-lab"); err != nil {
		return c, err
	}
	defer func() { err = cmp.Or(err, b.close()) }()
	b.state.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	b.open()
	for deadline := time.Now().Add(time.Minute); b.pass(ctx) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return c, fmt.Errorf("bring up: %w", b.pass(ctx))
		}
	}
	if err := b.steps(ctx, peers); err != nil {
		return c, err
	}
	return column{Store: "none", Backend: backend, Peers: peers, Figures: b.figures}, nil
}

// steps measures a first sync, a restart, an added and a removed peer. The paths of an
// applied State are not modified: to add one, they are copied.
func (b *hnsBench) steps(ctx context.Context, peers int) error {
	for i := range peers {
		b.state.Paths = append(b.state.Paths, b.path(i))
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"first", func() error { return nil }},
		{"restart", func() error { return b.restart() }},
		{"add", func() error { b.state.Paths = append(b.state.Paths[:peers:peers], b.path(peers)); return nil }},
		{"remove", func() error { b.state.Paths = b.state.Paths[:peers]; return nil }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		if err := b.measure(ctx, "hns_"+step.name); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if _, bridged := b.device.Kind.(dataplane.L2Bridge); bridged {
		b.figures["hns_route_ms"] = b.figures["hns_add_ms"]
	}
	return nil
}

// open creates a driver. Its polling interval is an hour, so that only passes
// call HNS and counts are exact.
func (b *hnsBench) open() {
	b.client = hns.NewClient(b.machine, hns.Timing{Poll: time.Hour})
	b.plane = hnsplane.New(hnsplane.Options{Options: driver.Options{Log: slog.New(slog.DiscardHandler), StateDir: b.dir},
		Pace: hnsplane.Pace{Poll: time.Hour, Limits: hostconfig.Limits{Rest: time.Millisecond}}}, b.client, b.machine)
}

// restart replaces the driver, as a restart of the daemon does.
func (b *hnsBench) restart() error {
	err := b.plane.Close()
	b.open()
	return err
}

func (b *hnsBench) close() error {
	return cmp.Or(b.plane.Close(), b.machine.Close(), os.RemoveAll(b.dir))
}

// path returns the path to peer i. There are 250 gateways at most, all on the link of
// the host.
func (b *hnsBench) path(i int) *dataplane.Path {
	return &dataplane.Path{
		Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(2 + i>>8), byte(i), 0}), 24),
		Via: netip.AddrFrom4([4]byte{10, 99, 0, byte(3 + i%250)}), Device: b.device.Name,
		Encap: b.encap(i),
	}
}

func overlayEncap(i int) dataplane.Encap {
	return dataplane.VTEP{MAC: mac.Addr{2, 0, 0, 0, byte(i >> 8), byte(i)}}
}

func bridgeEncap(int) dataplane.Encap { return dataplane.Direct{} }

// pass brings up the device and applies the state.
func (b *hnsBench) pass(ctx context.Context) error {
	links, err := b.plane.Ensure(ctx, []dataplane.Device{b.device})
	refused, applyErr := b.plane.Apply(ctx, links, b.state)
	for _, r := range refused {
		applyErr = cmp.Or(applyErr, r.Err)
	}
	return cmp.Or(err, applyErr)
}

// measure waits until background work is done, and measures one pass.
func (b *hnsBench) measure(ctx context.Context, key string) error {
	time.Sleep(100 * time.Millisecond)
	b.machine.ForgetLog()
	calls, changes := b.client.Counts()
	began := time.Now()
	if err := b.pass(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	// Changes are taken from the machine, because those of routes do not go through the
	// client; queries are the client's calls that change nothing.
	callsNow, changesNow := b.client.Counts()
	b.figures[key+"_ms"] = milliseconds(took)
	b.figures[key+"_queries"] = float64(callsNow - calls - (changesNow - changes))
	b.figures[key+"_changes"] = float64(len(b.machine.Changes()))
	return nil
}
