package node

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/underlay"
	"flannel/pkg/windows"
	"flannel/pkg/windows/hns"
)

// podMTU creates an endpoint as the plugin does with a configuration, and returns the pod's MTU.
func podMTU(t *testing.T, m *hnstest.Machine, network hns.Network, conf []byte) int {
	t.Helper()
	var c struct {
		Delegate struct {
			Policies []struct{ Value json.RawMessage }
		}
	}
	if err := json.Unmarshal(conf, &c); err != nil {
		t.Fatal(err)
	}
	endpoint := map[string]any{"Name": "pod", "HostComputeNetwork": network.ID, "SchemaVersion": map[string]int{"Major": 2}}
	var policies []json.RawMessage
	for _, p := range c.Delegate.Policies {
		policies = append(policies, p.Value)
	}
	endpoint["Policies"] = policies
	document, err := json.Marshal(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.CreateEndpoint(network.ID, document); err != nil {
		t.Fatal(err)
	}
	return m.Admin().PodMTU("pod")
}

// Pods get 50 less than a small MTU of the adapter, if HNS can do that, and the usual MTU if not, with a warning.
func TestPodMTU(t *testing.T) {
	for name, c := range map[string]struct {
		adapter, set int // set: by the flag; -1: it is not
		api          int
		refused      hns.Code
		silent       bool // no network to try it on
		want         int  // MTU of pods
	}{
		"usual": {1500, -1, 2, 0, false, 1450}, "small": {1460, -1, 2, 0, false, 1410}, "jumbo": {9000, -1, 2, 0, false, 1450},
		"refused": {1460, -1, 2, hns.InvalidPolicyType, false, 1450}, "usual and refused": {1500, -1, 2, hns.InvalidPolicy, false, 1450},
		"no network": {1460, -1, 2, 0, true, 1450}, "API 1": {1460, -1, 1, 0, false, 1450},
		"set": {1460, 70, 2, 0, false, 1430}, "set to none": {1460, 0, 2, 0, false, 1450},
	} {
		t.Run(name, func(t *testing.T) {
			m := hnstest.NewFor(t)
			client := hns.NewClient(m, hns.Timing{})
			physical := m.Admin().Adapter("Ethernet")
			if err := m.SetInterface(physical.Index, false, hns.Interface{MTU: c.adapter}); err != nil {
				t.Fatal(err)
			}
			ip := physical.Addrs[0].Prefix.Addr()
			subnet := netip.MustParsePrefix("10.244.1.0/24")
			kind := hns.Network{Name: "flannel.4096", Type: hns.Overlay, Adapter: "Ethernet", Subnets: []hns.Subnet{{Prefix: subnet, Gateway: netip.MustParseAddr("10.244.1.1"), VSID: 4096}}}
			var network hns.Network
			create := func() {
				var err error
				if network, err = client.CreateNetwork(t.Context(), kind); err != nil {
					t.Fatal(err)
				}
			}
			if !c.silent {
				create()
			}
			m.Turn(func(k *hnstest.Knobs) { k.OverheadRefused = c.refused })
			var log logtest.Log
			s := conflist.Spec{Plugin: "win-overlay", API: c.api, Network: kind.Name, Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
				Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, ManagementIP: ip, EncapOverhead: c.set}
			from := CNISources{NetConfRemote: true, HNS: client, Log: log.Logger(),
				Underlay: func() (underlay.Snapshot, error) { return windows.UnderlayOf(m, underlay.Options{}) }}
			conf, _ := write(t, from, s, filepath.Join(t.TempDir(), "10-flannel.conf"), false)
			if left := m.Admin().Endpoints(); len(left) > 0 {
				t.Errorf("left behind: %s", left)
			}
			if c.silent {
				create()
			}
			if got := podMTU(t, m, network, conf); got != c.want {
				t.Errorf("pods have MTU %d, want %d", got, c.want)
			}
			wrong := c.set < 0 && c.want > c.adapter-50
			if got := log.Count("cause="+causeOverhead) == 1; got != wrong {
				t.Errorf("warned: %t, want %t", got, wrong)
			}
		})
	}
}

// HNS makes the endpoint of a trial whose call fails, as when it answers too late: the next trial deletes it.
func TestTrialLeftBehind(t *testing.T) {
	m := hnstest.NewFor(t)
	client := hns.NewClient(m, hns.Timing{})
	_, err := client.CreateNetwork(t.Context(), hns.Network{Name: "flannel.4096", Type: hns.Overlay, Adapter: "Ethernet",
		Subnets: []hns.Subnet{{Prefix: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1"), VSID: 4096}}})
	if err != nil {
		t.Fatal(err)
	}
	from := CNISources{HNS: client}
	s := conflist.Spec{Plugin: "win-overlay", API: 2, EncapOverhead: 90}
	try := func() (tried bool, err error) {
		var d conflist.Decisions
		err, _ = from.createTrials(t.Context(), s, conflist.Options{EncapOverhead: true}, &d)
		return d.Tried.EncapOverhead, err
	}
	m.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Times: 1, Code: hns.RPCCallFailed, After: true})
	if tried, err := try(); err == nil || tried || len(m.Admin().Endpoints()) != 1 {
		t.Fatalf("tried %t, %v; endpoints %s, want one left behind", tried, err, m.Admin().Endpoints())
	}
	if tried, err := try(); err != nil || !tried || len(m.Admin().Endpoints()) != 0 {
		t.Errorf("tried %t, %v; left behind: %s", tried, err, m.Admin().Endpoints())
	}
}
