package e2e

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/windows"
	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/windows/hns"
)

// againAndRejoined: a second run changes nothing, whether flanneld runs or was
// stopped, with and without parameters. Then the Node is deleted, and the node
// gets another subnet when it is registered again.
func againAndRejoined(c *console, m mode) {
	t := c.t
	must(t, c.start(m.flags(c.n)...))
	w := c.checkNode(m)
	p := c.pings(w)
	forgetLog(t, c.n)
	must(t, c.start())
	c.checkUnchanged(m, w, "a second run without parameters")
	c.failsAtTheEnd(m)
	c.stop()
	forgetLog(t, c.n)
	must(t, c.start(m.flags(c.n)...))
	c.checkUnchanged(m, w, "a run after node stop")
	must(t, p.Delete(t.Context())) // as kubectl drain does
	c.rejoins(m, w)
}

// interrupted: runs that end in the middle of the outage, after it, and at the
// end. Each time the machine loses power.
func interrupted(c *console, m mode) {
	t := c.t
	order(t, c.n, windows.Order{Turn: []byte(marshal(t, hnstest.Knobs{Outage: -1, KillTCP: true}))})
	var flags []string
	for i, reached := range []func(output string) bool{
		func(string) bool { return c.inOutage() },
		func(output string) bool { return strings.Contains(output, "  5/8 ") },
		func(string) bool { flags = c.started("kube-proxy"); return flags != nil },
	} {
		c.during = func(output string) error {
			if reached(output) {
				return errInterrupted
			}
			return nil
		}
		if err := c.start(m.flags(c.n)...); !errors.Is(err, errInterrupted) {
			t.Fatalf("the run was not interrupted: %v", err)
		}
		if i == 0 {
			c.endOutage()
		}
	}
	vip := c.vip(flags)
	c.during = nil
	forgetLog(t, c.n)
	must(t, c.start(m.flags(c.n)...))
	w := c.checkNode(m)
	if w.vip != vip {
		t.Errorf("the source VIP is %s, was %s", w.vip, vip)
	}
	if got := c.changes(); len(got) > 0 {
		t.Errorf("the last run changed\n%s", strings.Join(got, "\n"))
	}
	c.waitRestoreDone()
	c.pings(w)
}

// inOutage reports whether no adapter has the address of the host, because
// there is a network.
func (c *console) inOutage() bool {
	r := order(c.t, c.n, windows.Order{})
	return len(r.Networks) == 1 && !slices.ContainsFunc(r.Adapters,
		func(a hns.Adapter) bool { return slices.ContainsFunc(a.Addrs, addressIs(c.n)) })
}

// endOutage checks that the journal has the address that the host lacks, and
// gives it back.
func (c *console) endOutage() {
	t := c.t
	t.Helper()
	if home, err := c.n.ReadFile("/run/flannel/hns.json"); err != nil ||
		!strings.Contains(string(home), c.n.IP4.String()) {
		t.Errorf("the journal does not have the address of the adapter: %s %v", home, err)
	}
	order(t, c.n, windows.Order{Turn: []byte(`{"Outage":0}`)})
}

// waitRestoreDone waits until flanneld has seen the whole configuration of the
// adapter for long enough to delete its journal of it.
func (c *console) waitRestoreDone() {
	c.t.Helper()
	withinOf(c.t, long, "the journal of the adapter is empty", func() error {
		home, err := c.n.ReadFile("/run/flannel/hns.json")
		if err == nil && strings.Contains(string(home), "Before") {
			err = fmt.Errorf("the journal is %s", home)
		}
		return err
	})
}

// lostAndRenamed: what Windows loses in the outage is restored. Later the
// adapter is renamed. HNS refuses pods with loopbackDSR, which the first run notices.
func lostAndRenamed(c *console, m mode) {
	t, n := c.t, c.n
	metadata := metadataRoute
	metadata.Index = order(t, n, windows.Order{}).Adapters[1].Index
	order(t, n, windows.Order{AddRoute: &metadata})
	order(t, n, windows.Order{Turn: []byte(marshal(t, hnstest.Knobs{Outage: 2 * time.Second, APIPA: true, LoseDNS: true, LoseGateway: true, LoseRoutes: true, MaxOutBoundNAT: 1}))})
	before := hostOn(t, n, lab.Adapter)
	mark := len(n.Log())
	must(t, c.start(m.flags(n)...))
	w := c.checkNode(m)
	if len(n.Records(mark).With("cause=pod-nat-refused")) == 0 { // node start has ended
		t.Errorf("it does not say that HNS refuses loopbackDSR:\n%s", c.output)
	}
	after := hostOn(t, n, "vEthernet ("+lab.Adapter+")")
	if after.index = before.index; !reflect.DeepEqual(after, before) {
		t.Errorf("the host configuration is %+v, was %+v", after, before)
	}
	c.waitRestoreDone()

	const other = "LAN 2"
	for i, name := range []string{other, lab.Adapter} {
		c.stop()
		if i == 0 {
			order(t, n, windows.Order{Rename: [2]string{lab.Adapter, other}})
		}
		forgetLog(t, n)
		must(t, c.start(append(m.flags(n), "--interface-name="+name)...))
		c.checkUnchanged(m, w, "a run with --interface-name "+name)
		if !logtest.Names(c.output, name, "vEthernet ("+lab.Adapter+")") {
			t.Errorf("prepare did not recognize the adapter:\n%s", c.output)
		}
	}
	c.pings(w)
}

// failsAtTheEnd makes kube-proxy fail on a healthy node. The doctor must then
// report everything that it can check here as ok.
func (c *console) failsAtTheEnd(m mode) {
	t := c.t
	t.Helper()
	if err := c.start("--kube-proxy-feature-gates=Broken=true"); err == nil || !logtest.Names(c.output, "kube-proxy", "7", base+`\kube-proxy.log`) {
		t.Errorf("node start with a kube-proxy that ends: %v", err)
	}
	output := strings.Join(strings.Fields(c.output), " ")
	codes := []string{"FL102", "FL301", "FL302", "FL401", "FL402", "FL501", "FL502", "FL503", "FL504", "FL511"}
	if m == overlayMode {
		codes = append(codes, "FL520") // prepare has added the firewall's rule
	}
	for _, code := range codes {
		if !strings.Contains(output, code+" ok ") {
			t.Errorf("%s is not ok:\n%s", code, c.output)
		}
	}
}

// rejoins deletes the Node of a node without pods, and runs node start.
func (c *console) rejoins(m mode, w nodeState) {
	t := c.t
	t.Helper()
	must(t, c.l.Kube.Unregister(t.Context(), c.n))
	c.stop()
	var early *lab.Pod                            // created before kube-proxy starts
	hold := c.file(base + `\kube-proxy.exe.hold`) // it has no version, so that nobody asks for the source VIP
	must(t, c.n.WriteFile(hold, ""))
	c.during = func(output string) (err error) {
		if early == nil && strings.Contains(output, "  6/8 ") {
			early = pod(t, c.n, "early-on-"+c.n.Name)
			_, err = c.n.Run(t.Context(), "rm", hold)
		}
		return err
	}
	defer func() { c.during = nil }()
	must(t, c.start(m.flags(c.n)...))
	after := c.checkNode(m)
	if after.subnet == w.subnet || after.network.ID == w.network.ID || after.network.Adapter != lab.Adapter {
		t.Errorf("the node state is %+v, was %+v", after, w)
	}
	if early.IP4 == after.vip || !after.subnet.Contains(early.IP4) {
		t.Errorf("the address of a pod is %s, the source VIP %s", early.IP4, after.vip)
	}
	c.pings(after)
	c.waitRestoreDone()
}

// oldHNS: a Windows without updates is refused with a reason, and left
// unchanged.
func oldHNS(c *console, m mode) {
	t := c.t
	before := hostOn(t, c.n, lab.Adapter)
	order(t, c.n, windows.Order{Turn: []byte(`{"Version":{"Major":9,"Minor":1}}`)})
	if err := c.start(m.flags(c.n)...); err == nil {
		t.Fatal("node start succeeded with HNS 9.1")
	}
	for _, what := range []string{"HNS 9.1", "KB4489899", "FL501"} {
		if !strings.Contains(c.output, what) {
			t.Errorf("%q is not in the output:\n%s", what, c.output)
		}
	}
	r := order(t, c.n, windows.Order{})
	if after := hostOn(t, c.n, lab.Adapter); len(r.Networks)+len(r.Endpoints) > 0 ||
		!reflect.DeepEqual(after, before) || c.daemonRuns() {
		t.Errorf("left over are %s %s, flanneld runs: %t; the host configuration is %+v, was %+v", r.Networks,
			r.Endpoints, c.daemonRuns(), after, before)
	}
	if home, err := c.n.ReadFile("/run/flannel/hns.json"); err == nil {
		t.Errorf("left over is a journal: %s", home)
	}
	order(t, c.n, windows.Order{Turn: []byte(`{"Version":{"Major":9,"Minor":3}}`)})
	must(t, c.start(m.flags(c.n)...))
	c.pings(c.checkNode(m))
}

// withoutScript starts flanneld.exe as the documentation of Kubernetes
// describes it, and nothing else.
func withoutScript(c *console, m mode) {
	t, ctx := c.t, c.t.Context()
	must(t, c.l.Kube.Register(ctx, c.n))
	must(t, c.n.WriteFile("/etc/kube-flannel/net-conf.json", c.l.Config(mixedVXLAN)))
	must(t, c.n.StartIn(base+`\flanneld.exe`, `--kubeconfig-file=c:\k\config`, "--iface="+c.n.IP4.String(),
		"--ip-masq=1", "--kube-subnet-mgr=1"))
	subnets, err := c.l.Kube.PodCIDRs(ctx, c.n.Name)
	must(t, err)
	withinOf(t, long, "subnet.env", func() error {
		env, err := c.n.SubnetEnv()
		if want := subnets[0].Addr().Next().String() + "/24"; err == nil && env["FLANNEL_SUBNET"] != want {
			err = fmt.Errorf("subnet.env is %v, want %s", env, want)
		}
		return err
	})
	withinOf(t, long, "the network", func() error {
		network, err := networkOf(c.n)
		if err == nil && network.Name != m.network {
			err = fmt.Errorf("the network is %s", network.Name)
		}
		return err
	})
	c.pings(nodeState{subnet: subnets[0]})
	if len(c.n.Records(0).With("level=ERROR")) > 0 { // what only takes long is a warning
		t.Errorf("the log is:\n%s", c.n.Log())
	}
}
