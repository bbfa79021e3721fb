package windows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// windows is a node on a simulated Windows machine, driven as the daemon would. All of it runs in a bubble of
// testing/synctest, where waiting takes no time.
type windows struct {
	*Driver
	t    *testing.T
	m    *hnstest.Machine
	opts options

	mu       sync.Mutex
	devices  []dataplane.Device
	state    dataplane.State
	done     reconcile.Result
	refused  []dataplane.Refused // by the last pass
	problems []string            // what passes said, each once in a row
	waits    []string            // the causes of those that only wait
	log      *logged
	step     bool // the last pass left all in step
}

// logged keeps what was logged at Info and above.
type logged struct {
	logtest.Log
	t *testing.T
}

func (l *logged) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return l.Log.Write(p)
}

var (
	winNetwork = netip.MustParsePrefix("10.244.0.0/16")
	ownSubnet  = netip.MustParsePrefix("10.244.1.0/24")
)

func overlayDevice(subnet netip.Prefix) dataplane.Device {
	return dataplane.Device{Name: "flannel.4096", Kind: dataplane.Overlay{VNI: 4096,
		Network: dataplane.Network{Parent: "Ethernet", Local: hnstest.HostAddr.Addr(), Subnets: []netip.Prefix{subnet}}}}
}

func bridgeDevice(subnets ...netip.Prefix) dataplane.Device {
	return dataplane.Device{Name: "cbr0", Kind: dataplane.L2Bridge{
		Network: dataplane.Network{Parent: "Ethernet", Local: hnstest.HostAddr.Addr(), Subnets: subnets}}}
}

// winPath leads to peer n; 10.99.0.n is where it is.
func winPath(dev dataplane.Device, n int) *dataplane.Path {
	p := &dataplane.Path{Dst: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), Via: netip.MustParseAddr(fmt.Sprintf("10.99.0.%d", n)), Device: dev.Name, Encap: dataplane.Direct{}}
	if _, overlay := dev.Kind.(dataplane.Overlay); overlay {
		p.Encap = dataplane.VTEP{MAC: dataplane.MAC{2, 0, 0, 0, 1, byte(n)}}
	}
	return p
}

// onWindows runs a test on a fresh machine whose node has three peers, 3 to 5.
func onWindows(t *testing.T, dev dataplane.Device, knobs hnstest.Knobs, test func(*windows)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &windows{t: t, m: hnstest.New(), log: &logged{t: t}}
		w.opts = options{Options: dataplane.Options{Log: slog.New(slog.NewTextHandler(w.log, nil)), StateDir: dir, Report: func(_ string, _ int, r reconcile.Result) {
			r.Replaced = 0 // these tests count writes
			w.done = w.done.Plus(r)
		}}}
		w.m.Turn(func(k *hnstest.Knobs) { *k = knobs })
		w.devices = []dataplane.Device{dev}
		w.state = dataplane.State{Networks: []netip.Prefix{winNetwork}}
		for n := 3; n <= 5; n++ {
			w.state.Paths = append(w.state.Paths, winPath(dev, n))
		}
		w.restart()
		t.Cleanup(func() {
			w.m.Heal()
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			for _, err := range w.m.Trouble() {
				t.Error(err)
			}
			if err := w.m.Close(); err != nil {
				t.Error(err)
			}
		})
		test(w)
	})
}

// restart begins anew, as after a kill -9.
func (w *windows) restart() {
	w.t.Helper()
	if w.Driver != nil {
		if err := w.Close(); err != nil {
			w.t.Fatal(err)
		}
	}
	time.Sleep(offbeat)
	w.Driver = New(w.opts, hns.NewClient(w.m, hns.Timing{Query: 3 * time.Second, Change: 5 * time.Second}), w.m)
	time.Sleep(2 * offbeat) // passes are one later than the driver's ticks
}

// offbeat keeps apart what a test does, passes, and the driver's timers, such as the tick every half second. Of two timers
// of a bubble that end at the same instant, either may be the first, and the goroutines that they wake run side by side.
const offbeat = time.Millisecond

func (w *windows) pass() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = reconcile.Result{}
	links, err := w.Ensure(w.t.Context(), w.devices)
	state := w.state
	state.Keep = reconcile.IsUnknown(err)
	refused, applyErr := w.Apply(w.t.Context(), links, state)
	w.refused = refused
	for _, r := range refused {
		applyErr = errors.Join(applyErr, r.Err)
	}
	if err == nil {
		err = applyErr
	}
	w.step = err == nil
	if err != nil && (len(w.problems) == 0 || w.problems[len(w.problems)-1] != err.Error()) {
		w.problems = append(w.problems, err.Error())
		if wait := (*dataplane.WaitError)(nil); errors.As(err, &wait) {
			w.waits = append(w.waits, wait.Cause())
		}
	}
	return err
}

// bring passes as the daemon does until all is in step.
func (w *windows) bring(within time.Duration) {
	w.t.Helper()
	began := time.Now()
	for w.pass() != nil {
		if time.Since(began) > within {
			w.t.Fatalf("not in step after %v: %q", within, w.problems)
		}
		time.Sleep(100 * time.Millisecond)
		select {
		case <-w.Changes():
		case <-time.After(15 * time.Second):
		}
		time.Sleep(offbeat)
	}
}

// mends serves for so long, and then wants all in step.
func (w *windows) mends(within time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-w.Changes():
			time.Sleep(offbeat)
			if w.pass() != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.step {
		w.t.Errorf("not in step after %v: %q", within, w.problems)
	}
}

// holds prints what the machine holds of ours, for a reader.
func (w *windows) holds() string {
	w.t.Helper()
	var lines []string
	for _, doc := range w.m.Admin().Networks() {
		n, err := hns.DecodeNetwork(doc)
		if err != nil {
			w.t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("network %s %s on %s, %s", n.Name, n.Type, n.Adapter, subnets(n.Subnets)))
		for _, p := range n.Policies {
			if key, v, ours := parsePolicy(p); ours && key.Prefix.IsValid() {
				lines = append(lines, fmt.Sprintf("%s: VNI %d, %s, %s", key, v.VSID, v.Provider, v.MAC))
			} else if ours {
				lines = append(lines, key.String())
			}
		}
	}
	for _, doc := range w.m.Admin().Endpoints() {
		e, err := hns.DecodeEndpoint(doc)
		if err != nil {
			w.t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("endpoint %s %v remote %t %v %v", e.Name, e.IPs, e.Remote, e.Provider, e.MAC))
	}
	adapters := w.m.Admin().Adapters()
	for _, r := range w.m.Admin().Routes() {
		i := slices.IndexFunc(adapters, func(a hns.Adapter) bool { return a.Index == r.Index })
		lines = append(lines, fmt.Sprintf("route %s via %s on %s", r.Dst, r.NextHop, adapters[i].Name))
	}
	for _, a := range adapters {
		if w.m.Admin().Forwarding(a.Name, false) {
			lines = append(lines, "forwarding on "+a.Name)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

const overlayInStep = `10.244.3.0/24: VNI 4096, 10.99.0.3, 02:00:00:00:01:03
10.244.4.0/24: VNI 4096, 10.99.0.4, 02:00:00:00:01:04
10.244.5.0/24: VNI 4096, 10.99.0.5, 02:00:00:00:01:05
HostRoute
network flannel.4096 Overlay on Ethernet, 10.244.1.0/24 via 10.244.1.1 with VNI 4096
route 0.0.0.0/0 via 10.99.0.1 on vEthernet (Ethernet)`

const bridgeInStep = `endpoint cbr0_ep [10.244.1.2/24] remote false invalid IP %s
forwarding on vEthernet (Ethernet)
forwarding on vEthernet (cbr0_ep)
network cbr0 L2Bridge on Ethernet, 10.244.1.0/24 via 10.244.1.1
route 0.0.0.0/0 via 10.99.0.1 on vEthernet (Ethernet)
route 10.244.3.0/24 via 10.99.0.3 on vEthernet (Ethernet)
route 10.244.4.0/24 via 10.99.0.4 on vEthernet (Ethernet)
route 10.244.5.0/24 via 10.99.0.5 on vEthernet (Ethernet)`

// check compares what the machine holds.
func (w *windows) check(want string) {
	w.t.Helper()
	got := w.holds()
	if i := strings.Index(got, "invalid IP "); i >= 0 && strings.Contains(want, "%s") {
		want = fmt.Sprintf(want, got[i+len("invalid IP "):][:17]) // HNS chooses the endpoint's MAC address
	}
	if got != want {
		w.t.Errorf("the machine holds\n%s\nwant\n%s", got, want)
	}
}

// changes are the calls since ForgetLog that changed something, as text.
func (w *windows) changed() string {
	var lines []string
	for _, c := range w.m.Changes() {
		lines = append(lines, c.String())
	}
	return strings.Join(lines, "\n")
}

// netKind is a kind of HNS network.
type netKind string

const (
	overlayKind netKind = "overlay"
	bridgeKind  netKind = "l2bridge"
)

// edit changes what networks of both kinds have.
func edit(dev *dataplane.Device, change func(*dataplane.Network)) {
	n, _ := dataplane.NetworkOf(dev.Kind)
	change(&n)
	switch k := dev.Kind.(type) {
	case dataplane.Overlay:
		k.Network = n
		dev.Kind = k
	case dataplane.L2Bridge:
		k.Network = n
		dev.Kind = k
	}
}

// kinds of machines on which what follows is to work alike.
var inStep = map[netKind]string{overlayKind: overlayInStep, bridgeKind: bridgeInStep}

func devicesOf(kind netKind) dataplane.Device {
	if kind == overlayKind {
		return overlayDevice(ownSubnet)
	}
	return bridgeDevice(ownSubnet)
}

// Bring-up on a machine where all is well, then a pass and a restart with nothing to do.
func TestBringUp(t *testing.T) {
	for _, kind := range []netKind{overlayKind, bridgeKind} {
		t.Run(string(kind), func(t *testing.T) {
			onWindows(t, devicesOf(kind), hnstest.Knobs{}, func(w *windows) {
				w.bring(time.Minute)
				w.check(inStep[kind])
				w.m.ForgetLog()
				w.mends(time.Minute)
				if got := w.changed(); got != "" {
					t.Errorf("a minute with nothing to do changed\n%s", got)
				}
				w.restart()
				w.m.ForgetLog()
				w.bring(0)
				if got := w.changed(); got != "" || w.done != (reconcile.Result{}) {
					t.Errorf("a restart with nothing to do changed\n%s\n%+v", got, w.done)
				}
				w.check(inStep[kind])
			})
		})
	}
}

// What HNS and the IP stack are asked for, word by word.
func TestGoldenRequests(t *testing.T) {
	tests := []struct {
		dev  dataplane.Device
		want string
	}{
		{overlayDevice(ownSubnet), `HcnCreateNetwork {"Name":"flannel.4096","Type":"Overlay","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet"}}],"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.1.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}],"Routes":[{"NextHop":"10.244.1.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"Flags":8,"SchemaVersion":{"Major":2,"Minor":0}}
HcnModifyNetwork flannel.4096 {"ResourceType":"Policy","RequestType":"Add","Settings":{"Policies":[{"Type":"HostRoute","Settings":{}},{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.244.3.0/24","IsolationId":4096,"ProviderAddress":"10.99.0.3","DistributedRouterMacAddress":"02-00-00-00-01-03"}},{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.244.4.0/24","IsolationId":4096,"ProviderAddress":"10.99.0.4","DistributedRouterMacAddress":"02-00-00-00-01-04"}},{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.244.5.0/24","IsolationId":4096,"ProviderAddress":"10.99.0.5","DistributedRouterMacAddress":"02-00-00-00-01-05"}}]}}`},
		{bridgeDevice(ownSubnet), `HcnCreateNetwork {"Name":"cbr0","Type":"L2Bridge","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet"}}],"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.1.0/24","Routes":[{"NextHop":"10.244.1.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"Flags":8,"SchemaVersion":{"Major":2,"Minor":0}}
HcnCreateEndpoint cbr0 {"Name":"cbr0_ep","HostComputeNetwork":"cbr0","IpConfigurations":[{"IpAddress":"10.244.1.2","PrefixLength":24}],"SchemaVersion":{"Major":2,"Minor":0}}
HNSCall POST /endpoints/cbr0_ep/attach {"SystemType":"Host","CompartmentId":1}
CreateIpForwardEntry2 10.244.3.0/24 via 10.99.0.3 on vEthernet (Ethernet) metric 256
CreateIpForwardEntry2 10.244.4.0/24 via 10.99.0.4 on vEthernet (Ethernet) metric 256
CreateIpForwardEntry2 10.244.5.0/24 via 10.99.0.5 on vEthernet (Ethernet) metric 256
SetIpInterfaceEntry IPv4 on vEthernet (cbr0_ep) metric=5000
SetIpInterfaceEntry IPv6 on vEthernet (cbr0_ep) metric=5000
SetInterfaceDnsSettings IPv4 on vEthernet (cbr0_ep) registration=false
SetIpInterfaceEntry IPv4 on vEthernet (cbr0_ep) forwarding=true
SetIpInterfaceEntry IPv4 on vEthernet (Ethernet) forwarding=true`},
	}
	for _, test := range tests {
		t.Run(dataplane.KindName(test.dev.Kind), func(t *testing.T) {
			onWindows(t, test.dev, hnstest.Knobs{}, func(w *windows) {
				w.bring(time.Minute)
				if got := sortRoutes(w.changed()); got != test.want {
					t.Errorf("asked for\n%s\nwant\n%s", got, test.want)
				}
			})
		})
	}
}

// sortRoutes sorts the routes that were added one after the other, in no order.
func sortRoutes(log string) string {
	lines := strings.Split(log, "\n")
	isRoute := func(line string) bool { return strings.HasPrefix(line, "CreateIpForwardEntry2 ") }
	if first := slices.IndexFunc(lines, isRoute); first >= 0 {
		end := first
		for end < len(lines) && isRoute(lines[end]) {
			end++
		}
		slices.Sort(lines[first:end])
	}
	return strings.Join(lines, "\n")
}

// dsts are the destinations of refused paths, in order.
func dsts(refused []dataplane.Refused) (all []string) {
	for _, r := range refused {
		all = append(all, r.Dst.String())
	}
	slices.Sort(all)
	return all
}
