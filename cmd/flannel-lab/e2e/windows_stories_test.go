package e2e

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/powershell"
	"flannel/cmd/flannel-lab/windows"
	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest"
	"flannel/pkg/logtest"
)

// againAndRejoined: a second run changes nothing, whether flanneld runs or was stopped, with and without parameters. Then
// the Node is deleted, and the node has another subnet when it comes back.
func againAndRejoined(c *console, m mode) {
	t := c.t
	must(t, c.start(m.parameters(c.n)))
	w := c.well(m)
	p := c.pings(w)
	forgetLog(t, c.n)
	must(t, c.start(nil))
	c.kept(m, w, "a second run without parameters")
	c.failsAtTheEnd()
	c.stop()
	forgetLog(t, c.n)
	must(t, c.start(m.parameters(c.n)))
	c.kept(m, w, "a run after stop.ps1")
	must(t, p.Delete(t.Context())) // drained
	c.rejoins(m, w)
}

// cutOff: runs that end in the middle of the outage, after it, and before the last step; the machine loses power each time.
func cutOff(c *console, m mode) {
	t := c.t
	order(t, c.n, windows.Order{Turn: []byte(marshal(t, hnstest.Knobs{Outage: -1, KillTCP: true}))})
	for _, last := range []string{"prepare", "--ip-masq", "status"} {
		c.before = func(args []string) error {
			if !slices.Contains(args, last) {
				return nil
			}
			if last == "prepare" {
				c.dieInOutage(args)
			}
			return powershell.ErrStopped
		}
		if err := c.start(m.parameters(c.n)); err == nil {
			t.Fatalf("nothing cut the run off before %s", last)
		}
		if c.n.Running() {
			must(t, c.n.Kill())
		}
	}
	vip := c.vip(c.started["kube-proxy"])
	c.before = nil
	forgetLog(t, c.n)
	must(t, c.start(m.parameters(c.n)))
	w := c.well(m)
	if w.vip != vip {
		t.Errorf("the source VIP is %s, was %s", w.vip, vip)
	}
	if got := c.changes(); len(got) > 0 {
		t.Errorf("the last run had nothing to change, and changed\n%s", strings.Join(got, "\n"))
	}
	c.settled()
	c.pings(w)
}

// dieInOutage kills flanneld.exe prepare while the host's address is nowhere.
func (c *console) dieInOutage(args []string) {
	t := c.t
	must(t, c.n.StartIn(base+`\flanneld.exe`, args...))
	withinOf(t, long, "the outage", func() error {
		r := order(t, c.n, windows.Order{})
		if len(r.Networks) != 1 || slices.ContainsFunc(r.Adapters, func(a hns.Adapter) bool { return slices.ContainsFunc(a.Addrs, addressIs(c.n)) }) {
			return fmt.Errorf("networks %s, adapters %+v", r.Networks, r.Adapters)
		}
		return nil
	})
	must(t, c.n.Kill())
	if home, err := c.n.ReadFile("/run/flannel/hns.json"); err != nil || !strings.Contains(string(home), c.n.IP4.String()) {
		t.Errorf("nothing is written down of what the adapter had: %s %v", home, err)
	}
	order(t, c.n, windows.Order{Turn: []byte(`{"Outage":0}`)})
}

// settled waits until flanneld has seen all that the adapter had for long enough.
func (c *console) settled() {
	c.t.Helper()
	withinOf(c.t, long, "the journal of what the adapter had is closed", func() error {
		home, err := c.n.ReadFile("/run/flannel/hns.json")
		if err == nil && strings.Contains(string(home), "Before") {
			err = fmt.Errorf("it says %s", home)
		}
		return err
	})
}

// lostAndRenamed: what Windows loses in the outage is put back; and later the adapter gets another name.
func lostAndRenamed(c *console, m mode) {
	t, n := c.t, c.n
	metadata := metadataRoute
	metadata.Index = order(t, n, windows.Order{}).Adapters[1].Index
	order(t, n, windows.Order{AddRoute: &metadata})
	order(t, n, windows.Order{Turn: []byte(marshal(t, hnstest.Knobs{Outage: 2 * time.Second, APIPA: true, LoseDNS: true, LoseGateway: true, LoseRoutes: true}))})
	before := hostOn(t, n, lab.Adapter)
	must(t, c.start(m.parameters(n)))
	w := c.well(m)
	now := hostOn(t, n, "vEthernet ("+lab.Adapter+")")
	if now.index = before.index; !reflect.DeepEqual(now, before) {
		t.Errorf("the host has %+v, had %+v", now, before)
	}
	c.settled()

	const other = "LAN 2"
	for i, name := range []string{other, lab.Adapter} {
		c.stop()
		if i == 0 {
			order(t, n, windows.Order{Rename: [2]string{lab.Adapter, other}})
		}
		forgetLog(t, n)
		parameters := m.parameters(n)
		parameters["InterfaceName"] = name
		must(t, c.start(parameters))
		c.kept(m, w, "a run with -InterfaceName "+name)
		if !logtest.Names(c.said, name, "vEthernet ("+lab.Adapter+")") {
			t.Errorf("prepare does not know the adapter again:\n%s", c.said)
		}
	}
	c.pings(w)
}

// failsAtTheEnd has the last step fail on a node that is well, which is what the doctor must say of all that it can see here.
func (c *console) failsAtTheEnd() {
	t := c.t
	t.Helper()
	c.before = func(args []string) error {
		if slices.Contains(args, "status") {
			return errors.New("made up")
		}
		return nil
	}
	defer func() { c.before = nil }()
	if err := c.start(nil); err == nil || !strings.Contains(err.Error(), "made up") {
		t.Errorf("start.ps1 ends with %v", err)
	}
	said := strings.Join(strings.Fields(c.said), " ")
	for _, code := range []string{"FL102", "FL301", "FL302", "FL401", "FL402", "FL501", "FL502", "FL503", "FL504", "FL511"} {
		if !strings.Contains(said, code+" ok ") {
			t.Errorf("%s is not ok:\n%s", code, c.said)
		}
	}
}

// rejoins deletes the Node of a node without pods, and runs start.ps1.
func (c *console) rejoins(m mode, w walked) {
	t := c.t
	t.Helper()
	must(t, c.l.Kube.Unregister(t.Context(), c.n))
	c.stop()
	var early *lab.Pod // that is quicker than kube-proxy
	c.before = func(args []string) error {
		if slices.Contains(args, "source-vip") {
			early = pod(t, c.n, "early-on-"+c.n.Name)
		}
		return nil
	}
	must(t, c.start(m.parameters(c.n)))
	now := c.well(m)
	if now.subnet == w.subnet || now.network.ID == w.network.ID || now.network.Adapter != lab.Adapter {
		t.Errorf("the node has %+v, had %+v", now, w)
	}
	if early.IP4 == now.vip || !now.subnet.Contains(early.IP4) {
		t.Errorf("a pod has %s, kube-proxy %s", early.IP4, now.vip)
	}
	c.pings(now)
	c.settled()
}

// oldHNS: a Windows without its updates is told so, and left as it was.
func oldHNS(c *console, m mode) {
	t := c.t
	before := hostOn(t, c.n, lab.Adapter)
	order(t, c.n, windows.Order{Turn: []byte(`{"Version":{"Major":9,"Minor":1}}`)})
	err := c.start(m.parameters(c.n))
	if err == nil {
		t.Fatal("start.ps1 goes on with HNS 9.1")
	}
	for _, what := range []string{"HNS 9.1", "KB4489899", "FL501"} {
		if !strings.Contains(c.said, what) {
			t.Errorf("%q is not said:\n%s", what, c.said)
		}
	}
	r := order(t, c.n, windows.Order{})
	if now := hostOn(t, c.n, lab.Adapter); len(r.Networks)+len(r.Endpoints) > 0 || !reflect.DeepEqual(now, before) || c.n.Running() {
		t.Errorf("left are %s %s, flanneld runs: %t; the host has %+v, had %+v", r.Networks, r.Endpoints, c.n.Running(), now, before)
	}
	if home, err := c.n.ReadFile("/run/flannel/hns.json"); err == nil {
		t.Errorf("left is a journal: %s", home)
	}
	order(t, c.n, windows.Order{Turn: []byte(`{"Version":{"Major":9,"Minor":3}}`)})
	must(t, c.start(m.parameters(c.n)))
	c.pings(c.well(m))
}

// byHand starts flanneld.exe as the documentation of Kubernetes has it, and nothing else.
func byHand(c *console, m mode) {
	t, ctx := c.t, c.t.Context()
	must(t, c.register())
	must(t, c.n.WriteFile("/etc/kube-flannel/net-conf.json", c.l.Config(mixedVXLAN)))
	must(t, c.n.StartIn(base+`\flanneld.exe`, `--kubeconfig-file=c:\k\config`, "--iface="+c.n.IP4.String(), "--ip-masq=1", "--kube-subnet-mgr=1"))
	subnets, err := c.l.Kube.PodCIDRs(ctx, c.n.Name)
	must(t, err)
	withinOf(t, long, "subnet.env", func() error {
		env, err := c.n.SubnetEnv()
		if want := subnets[0].Addr().Next().String() + "/24"; err == nil && env["FLANNEL_SUBNET"] != want {
			err = fmt.Errorf("it has %v, want %s", env, want)
		}
		return err
	})
	withinOf(t, long, "the network", func() error {
		network, err := networkOf(c.n)
		if err == nil && network.Name != m.network {
			err = fmt.Errorf("it is %s", network.Name)
		}
		return err
	})
	c.pings(walked{subnet: subnets[0]})
	if len(c.n.Records(0).With("level=ERROR")) > 0 {
		t.Errorf("it says:\n%s", c.n.Log())
	}
}
