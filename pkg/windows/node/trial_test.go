package node

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/api"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// A pod has two policies OutBoundNAT at most, with which rke2 works: the configuration's and, with loopbackDSR, the plugin's.
func TestOutBoundNAT(t *testing.T) {
	n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
	n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = 2 })
	conf := n.configure(t, nil).Delegate
	if !conf.LoopbackDSR || len(conf.Policies) == 0 || conf.Policies[0].Value.Type != "OutBoundNAT" {
		t.Errorf("%+v", conf)
	}
	if err := n.pod(t, conf, "10.244.1.7"); err != nil {
		t.Errorf("no pod can start: %v", err)
	}
}

// Where HNS refuses a pod's policies OutBoundNAT together, cni-conf leaves loopbackDSR out, so that pods start. Another
// refusal changes nothing, and the next run tries again. Once HNS accepted or refused loopbackDSR, a run that changes nothing
// in the file changes nothing in HNS either.
func TestOutBoundNATRefused(t *testing.T) {
	for name, c := range map[string]struct {
		most   int
		fault  hns.Code // of trials; 0: none
		times  int      // of the fault; 0: of each trial
		want   bool     // loopbackDSR
		warned int
	}{
		"two": {2, 0, 0, true, 0}, "one": {1, 0, 0, false, 1}, "each endpoint": {0, hns.InvalidPolicy, 0, true, 0},
		"another reason": {0, hns.InvalidParameter, 1, true, 0}, "a policy that it does not know": {0, hns.InvalidPolicyType, 1, true, 0},
		"no answer": {0, hns.RPCServerUnavailable, 1, true, 0}, "address in use": {0, hns.AddressInUse, 1, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
			n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = c.most })
			if c.fault != 0 {
				n.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Match: trialEndpoint, Times: c.times, Code: c.fault})
			}
			n.ForgetLog()
			conf := n.configure(t, nil).Delegate
			if n.changes() == 0 {
				t.Error("there was no trial")
			}
			if conf.LoopbackDSR != c.want || n.log.Count("cause="+causeNAT) != c.warned {
				t.Errorf("loopbackDSR %t, want %t; logged\n%s", conf.LoopbackDSR, c.want, &n.log)
			}
			if left := n.Admin().Endpoints(); len(left) > 0 {
				t.Errorf("left behind: %s", left)
			}
			if err := n.pod(t, conf, "10.244.1.7"); err != nil {
				t.Errorf("no pod can start: %v", err)
			}
			n.ForgetLog()
			again, changes := n.configure(t, nil).Delegate, n.changes()
			if again.LoopbackDSR != c.want || (changes > 0) != (c.fault != 0) {
				t.Errorf("a second run: loopbackDSR %t, want %t; %d changes of HNS", again.LoopbackDSR, c.want, changes)
			}
			if n.log.Count("cause="+causeNAT) != 2*c.warned {
				t.Errorf("logged\n%s", &n.log)
			}
		})
	}
}

// The trial has an address of the network without pods, so that no pod loses it; without that network there is none.
func TestTrialHasNoPodsAddress(t *testing.T) {
	n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
	n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = 1 })
	n.Fail(hnstest.Fault{Func: "HcnDeleteEndpoint", Code: hns.InvalidParameter})
	s := n.spec().Without(conflist.Options{LoopbackDSR: true})
	s.EncapOverhead = 90
	from, both := n.sources(), conflist.Options{LoopbackDSR: true, EncapOverhead: true}
	d := conflist.Decisions{}
	if why, _ := from.createTrials(t.Context(), s, conflist.Options{EncapOverhead: true}, &d); why == nil || d.Tried.EncapOverhead {
		t.Errorf("its endpoint stays: %+v, %v", d, why)
	}
	left, err := n.client.EndpointsNamed(t.Context(), trialEndpoint)
	if err != nil || len(left) != 1 || len(left[0].IPs) != 1 || left[0].IPs[0] != netip.MustParsePrefix("192.168.255.2/30") {
		t.Errorf("endpoints %+v, %v", left, err)
	}
	n.Heal()
	if s.LoopbackDSR = true; n.Admin().DeleteNetwork(dataplane.SwitchNetwork) != nil {
		t.Fatal("the network cannot be deleted")
	}
	d = conflist.Decisions{}
	overhead, loopback := from.createTrials(t.Context(), s, both, &d)
	want := conflist.Decisions{Tried: conflist.Options{EncapOverhead: true}}
	if d != want || overhead != nil || loopback == nil {
		t.Errorf("on the network of pods: %+v, want %+v; %v, %v", d, want, overhead, loopback)
	}
	// With --loopback-dsr, a pod's own address is in a policy, and the trial has none.
	n.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Match: "Destinations", Code: hns.InvalidParameter})
	d = conflist.Decisions{}
	if why, _ := from.createTrials(t.Context(), s, conflist.Options{EncapOverhead: true}, &d); d != want || why != nil {
		t.Errorf("with loopbackDSR given: %+v, want %+v; %v", d, want, why)
	}
}

// What a trial says about both options. The reason is that of the option.
func TestBothOptions(t *testing.T) {
	both := conflist.Options{LoopbackDSR: true, EncapOverhead: true}
	for name, c := range map[string]struct {
		most     int
		overhead hns.Code
		want     conflist.Options // left out
	}{
		"none": {2, 0, conflist.Options{}}, "loopbackDSR": {1, 0, conflist.Options{LoopbackDSR: true}},
		"overhead": {2, hns.InvalidPolicyType, conflist.Options{EncapOverhead: true}}, "both": {1, hns.InvalidPolicy, both},
		"an old HNS": {1, hns.InvalidParameter, both},
	} {
		n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
		n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT, k.OverheadRefused = c.most, c.overhead })
		s := n.spec()
		s.EncapOverhead = 90
		var d conflist.Decisions
		overhead, loopback := n.sources().createTrials(t.Context(), s, both, &d)
		if want := (conflist.Decisions{LeftOut: c.want, Tried: both}); d != want {
			t.Errorf("%s: %+v, want %+v", name, d, want)
		}
		if codeOf(overhead) != c.overhead || (codeOf(loopback) == hns.InvalidPolicy) != c.want.LoopbackDSR {
			t.Errorf("%s: overhead %v, loopbackDSR %v", name, overhead, loopback)
		}
	}
}

func codeOf(err error) hns.Code {
	if e, ok := errors.AsType[*hns.Error](err); ok {
		return e.Code
	}
	return 0
}

// A failure that is not about the policies is no refusal, and the next run tries again.
func TestTransientFailure(t *testing.T) {
	for name, fault := range map[string]hnstest.Fault{
		"delete": {Func: "HcnDeleteEndpoint", Code: hns.InvalidPolicy}, "list": {Func: "HcnEnumerateEndpoints", Code: hns.InvalidPolicy},
		"create": {Func: "HcnCreateEndpoint", Code: api.OutOfMemory},
	} {
		n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
		n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = 2 })
		s, both := n.spec(), conflist.Options{LoopbackDSR: true, EncapOverhead: true}
		s.EncapOverhead = 90
		fault.Times = 1
		for skip := range 2 {
			fault.Skip = skip
			n.Fail(fault)
			var d conflist.Decisions
			overhead, loopback := n.sources().createTrials(t.Context(), s, both, &d)
			if d.LeftOut != (conflist.Options{}) || d.Tried == both || overhead == nil && loopback == nil {
				t.Errorf("%s, %d: %+v, %v, %v", name, skip, d, overhead, loopback)
			}
			n.Heal()
		}
		n.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Times: 1, Code: fault.Code, Match: trialEndpoint})
		if n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = 1 }); !n.configure(t, nil).Delegate.LoopbackDSR && fault.Code != hns.InvalidPolicy {
			t.Errorf("%s: loopbackDSR was left out", name)
		}
		if n.configure(t, nil).Delegate.LoopbackDSR {
			t.Errorf("%s: the next run does not try again", name)
		}
	}
}

// An endpoint of a trial that somebody else deleted is as good as deleted.
func TestTrialDeletedByOthers(t *testing.T) {
	n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
	n.Fail(hnstest.Fault{Func: "HcnDeleteEndpoint", Code: hns.EndpointNotFound, After: true})
	if n.configure(t, nil); strings.Contains(n.log.String(), "level=INFO") {
		t.Errorf("logged\n%s", &n.log)
	}
}

// Pods on an L2Bridge get their policies from win-bridge.
func TestTrialOnBridge(t *testing.T) {
	for most, want := range map[int]bool{1: false, 2: true} {
		m := hnstest.NewFor(t)
		m.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = most })
		n := &natNode{Machine: m, client: hns.NewClient(m, hns.Timing{}), file: filepath.Join(t.TempDir(), "10-flannel.conf")}
		p := netip.MustParsePrefix("192.168.255.0/30")
		if _, err := n.client.CreateNetwork(t.Context(), hns.Network{Name: dataplane.SwitchNetwork, Type: hns.L2Bridge, Adapter: "Ethernet",
			Subnets: []hns.Subnet{{Prefix: p, Gateway: p.Addr().Next()}}}); err != nil {
			t.Fatal(err)
		}
		s := n.spec()
		s.Plugin, s.Network = "win-bridge", "cbr0"
		n.ForgetLog()
		text, _ := write(t, n.sources(), s, n.file, false)
		if has := strings.Contains(string(text), `"loopbackDSR": true`); has != want || n.changes() == 0 {
			t.Errorf("at most %d policies: loopbackDSR %t\n%s", most, has, &n.log)
		}
	}
}

// What the file says counts where HNS does not answer; --force asks HNS again; a file that somebody edited is no reason to ask.
func TestWhenToTry(t *testing.T) {
	n := newNATNode(t, hns.Version{}, "10.244.1.0/24")
	loopback := func(what string, s conflist.Spec, force bool, want bool, result string, tried bool) {
		t.Helper()
		n.ForgetLog()
		text, got := write(t, n.sources(), s, n.file, force)
		has := strings.Contains(string(text), `"loopbackDSR": true`)
		if has != want || got != result || (n.changes() > 0) != tried {
			t.Errorf("%s: %s, loopbackDSR %t, want %s, %t; a trial is expected: %t; log\n%s", what, got, has, result, want, tried, &n.log)
		}
	}
	s, more := n.spec(), n.spec()
	more.NATExceptions = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
	most := func(count int) { n.Turn(func(k *hnstest.Knobs) { k.MaxOutBoundNAT = count }) }
	most(1)
	loopback("refused", s, false, false, "written", true)
	n.Turn(func(k *hnstest.Knobs) { k.Down = true })
	loopback("HNS does not answer", more, false, false, "updated", false)
	n.Turn(func(k *hnstest.Knobs) { k.Down = false })
	loopback("as it was refused", more, false, false, "unchanged", true)
	loopback("refused again", more, false, false, "unchanged", false)
	record := conflist.Record(n.file)
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	loopback("the record is lost", more, false, false, "unchanged", true)
	off := more
	off.LoopbackDSR = false
	loopback("without direct server return", off, false, false, "unchanged", false)
	loopback("with it", more, false, false, "unchanged", false)
	if err := n.Admin().DeleteNetwork(dataplane.SwitchNetwork); err != nil {
		t.Fatal(err)
	}
	loopback("forced without a network to try on", more, true, false, "unchanged", false)
	n.create(t, dataplane.SwitchNetwork, "192.168.255.0/30", 9999)
	loopback("with the network", more, false, false, "unchanged", true)
	most(2)
	loopback("Windows was updated", more, false, false, "unchanged", false)
	loopback("forced", more, true, true, "updated", true)
	loopback("accepted", more, false, true, "unchanged", false)
	loopback("turned off", off, false, false, "updated", false)
	loopback("turned on", more, false, true, "updated", false)
	text, err := os.ReadFile(n.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.file, []byte(strings.Replace(string(text), "172.16.0.0/12", "172.20.0.0/16", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	loopback("edited", more, false, true, "differs", false)
}

// loopbackDSR is for direct server return: without it, pods take the ports that load balancers need.
func TestPortsForLoadBalancers(t *testing.T) {
	on, off := true, false
	for name, c := range map[string]struct {
		version hns.Version
		dsr     *bool
		want    bool
	}{
		"HNS without DSR": {hns.Version{Major: 9, Minor: 2}, nil, false}, "kube-proxy without DSR": {hns.Version{Major: 13}, &off, false},
		"kube-proxy with DSR": {hns.Version{Major: 13}, &on, true}, "no kube-proxy": {hns.Version{Major: 13}, nil, true},
	} {
		n := newNATNode(t, c.version, "10.244.1.0/24")
		n.Turn(func(k *hnstest.Knobs) { k.PortPool = 2 })
		conf := n.configure(t, c.dsr).Delegate
		if conf.LoopbackDSR != c.want {
			t.Errorf("%s: loopbackDSR %t, want %t", name, conf.LoopbackDSR, c.want)
		}
		for _, ip := range []string{"10.244.1.7", "10.244.1.8"} {
			if err := n.pod(t, conf, ip); err != nil {
				t.Fatal(err)
			}
		}
		program := n.Begin()
		if _, code := program.HNS("HcnCreateLoadBalancer", "7804602a-559f-427d-9974-eeaf95aeb5c5", `{"FrontendVIPs":["10.96.0.10"]}`); code != 0 {
			t.Errorf("%s: load balancer: %#x", name, uint32(code))
		}
		program.End()
	}
}
