package plugin

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/nettest"
	"flannel/internal/test/nstest"
)

// ADD, CHECK, DEL and GC through libcni with the real plugins, in every CNI version
// of the configuration.
func TestRuntime(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			for name, c := range map[string]struct {
				env   string
				addrs []string
			}{"IPv4": {envText, []string{"10.5.72.2/24"}}, "dual-stack": {dualText, []string{"10.5.72.2/24", "2001:cafe:42:1::2/64"}}} {
				t.Run(version+" "+name, func(t *testing.T) {
					m := newMachine(t, c.env)
					list := kubeFlannelList
					if version < "0.3.0" { // lists are supported from 0.3.0 on
						list = list[:strings.Index(list, ",\n\t{\"type\":\"portmap\"")] + "]}"
					}
					m.configure(list, version)
					m.liveOnce(version, c.addrs)
				})
			}
		}
	})
}

func (m *machine) liveOnce(version string, want []string) {
	defer deleteBridge(m)
	m.makeNetns("pod1")
	defer m.deleteNetns("pod1")
	ctx, rt := m.Context(), m.runtime("pod1")
	rt.CapabilityArgs = capabilities()
	if err := m.cni.GetStatusNetworkList(ctx, m.list); err != nil {
		m.Errorf("STATUS: %v", err)
	}
	if _, err := m.add(ctx, rt); err != nil {
		m.Fatalf("ADD: %v", err)
	}
	if got, mtu := m.addrs("pod1"); !cmp.Equal(want, got) || mtu != 1450 {
		m.Errorf("%v with an MTU of %d, want %v and 1450", got, mtu, want)
	}
	err := m.cni.CheckNetworkList(ctx, m.list, rt)
	if hasCheck := version >= "0.4.0"; err != nil && (hasCheck || !errors.Is(err, libcni.ErrorCheckNotSupp)) {
		m.Errorf("CHECK: %v", err)
	}
	if version >= "1.1.0" {
		m.collectGarbage(ctx, rt)
	}
	for range 2 {
		if err := m.cni.DelNetworkList(ctx, m.list, rt); err != nil {
			m.Errorf("DEL: %v", err)
		}
	}
	if err := m.cni.GCNetworkList(ctx, m.list, &libcni.GCArgs{}); err != nil { // null
		m.Errorf("GC without pods: %v", err)
	}
	if left := m.leftovers(); len(left) > 0 {
		m.Errorf("remaining: %v", left)
	}
}

// collectGarbage checks that GC keeps the attachments in the runtime's list, and
// deletes the others.
func (m *machine) collectGarbage(ctx context.Context, rt *libcni.RuntimeConf) {
	m.makeNetns("lost")
	defer m.deleteNetns("lost")
	if _, err := m.add(ctx, m.runtime("lost")); err != nil {
		m.Fatalf("ADD: %v", err)
	}
	lost := *m.cni
	other := libcni.NewCNIConfigWithCacheDir(lost.Path, m.dir+"/empty", nil) // a runtime that has lost its cache
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "pod1", IfName: "eth0"}}}
	if err := other.GCNetworkList(ctx, m.list, valid); err != nil {
		m.Errorf("GC: %v", err)
	}
	if left := strings.Join(m.leftovers(), " "); !strings.Contains(left, "saved/pod1 leases/cbr0/10.5.72.2 ") || strings.Contains(left, "saved/lost") || strings.Contains(left, "10.5.72.3") {
		m.Errorf("after GC: %s", left)
	}
	if err := m.cni.CheckNetworkList(ctx, m.list, rt); err != nil {
		m.Errorf("CHECK after GC: %v", err)
	}
	if err := m.cni.DelNetworkList(ctx, m.list, m.runtime("lost")); err != nil { // with its cache
		m.Errorf("DEL after GC: %v", err)
	}
}

func deleteBridge(m *machine) {
	if out, err := exec.Command("ip", "link", "delete", "cni0").CombinedOutput(); err != nil {
		m.Errorf("%v: %s", err, out)
	}
}

// macvlan and ipvlan as delegates. If the kernel does not support one, ADD returns
// the error and leaves nothing behind.
func TestOtherDelegates(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "parent0"}, PeerName: "parent1"}); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"macvlan", "ipvlan"} {
			m := newMachine(t, dualText)
			m.configure(`{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"flannel","subnetFile":"DIR/subnet.env","dataDir":"DIR/saved",
				"ipam":{"dataDir":"DIR/leases"},"delegate":{"type":"`+kind+`","master":"parent0"}}]}`, "")
			m.makeNetns("pod1")
			rt := m.runtime("pod1")
			_, err := m.add(t.Context(), rt)
			if err != nil && strings.Contains(err.Error(), unix.EOPNOTSUPP.Error()) {
				t.Logf("this kernel does not support %s: %v", kind, err)
			} else if err != nil {
				t.Error(err)
			} else if got, mtu := m.addrs("pod1"); len(got) != 2 || mtu != 1450 {
				t.Errorf("%s: %v, %d", kind, got, mtu)
			} else if err := m.cni.CheckNetworkList(t.Context(), m.list, rt); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			if err := m.cni.DelNetworkList(t.Context(), m.list, rt); err != nil {
				t.Error(err)
			}
			if left := m.leftovers(); len(left) > 0 {
				t.Errorf("%s: remaining: %v", kind, left)
			}
			m.deleteNetns("pod1")
		}
	})
}

// Each of this plugin and the upstream one deletes pods that the other has added,
// also after a change of the node's subnet.
func TestInteroperation(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, version := range []string{"0.3.1", "0.4.0"} {
			for _, upstreamAdds := range []bool{true, false} {
				m := newMachine(t, envText)
				m.configure(kubeFlannelList, version)
				m.makeNetns("pod1")
				rt := m.runtime("pod1")
				rt.CapabilityArgs = capabilities()
				m.useUpstream(upstreamAdds)
				if _, err := m.add(t.Context(), rt); err != nil {
					t.Fatal(err)
				}
				m.useUpstream(!upstreamAdds)
				if version == "0.4.0" {
					if err := m.cni.CheckNetworkList(t.Context(), m.list, rt); err != nil {
						t.Errorf("CHECK, added by upstream: %v: %v", upstreamAdds, err)
					}
				}
				m.setEnv(strings.ReplaceAll(envText, "10.5.72.1", "10.5.73.1"))
				if err := m.cni.DelNetworkList(t.Context(), m.list, rt); err != nil {
					t.Errorf("DEL, added by upstream: %v: %v", upstreamAdds, err)
				}
				if left := m.leftovers(); len(left) > 0 {
					t.Errorf("added by upstream: %v: remaining: %v", upstreamAdds, left)
				}
				m.deleteNetns("pod1")
			}
		}
	})
}

// The delegate gets the same configuration as from the upstream plugin.
func TestSameConfigurationAsUpstream(t *testing.T) {
	n := newNode(t)
	if err := os.Symlink(nettest.Tool(t, "cni-former/flannel"), n.path("upstream")); err != nil {
		t.Fatal(err)
	}
	for _, env := range []string{envText, strings.Replace(envText, "true", "false", 1), "FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64\n" + envText} {
		n.write("subnet.env", env)
		for _, more := range []map[string]any{
			{}, {"cniVersion": "0.4.0"},
			{"delegate": map[string]any{"type": "fake-bridge", "mtu": 9000, "ipMasq": true, "isGateway": false, "hairpinMode": true}},
			{"ipam": map[string]any{"dataDir": "/x", "routes": []any{map[string]any{"dst": "0.0.0.0/0"}}}},
			{"ipam": map[string]any{"type": "dhcp"}},
			{"runtimeConfig": map[string]any{"mac": "0a:00:00:00:00:01"}},
		} {
			n.conf = map[string]any{"cniVersion": "0.3.1", "name": "cbr0", "type": "flannel", "subnetFile": n.path("subnet.env"), "dataDir": n.path("data"),
				"delegate": map[string]any{"type": "fake-bridge"}}
			maps.Copy(n.conf, more)
			var confs []string
			for _, program := range []string{"upstream", "bin/flannel"} {
				cmd := n.command("ADD", "pod1", "eth0")
				cmd.Path = n.path(program)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				_, conf, _ := strings.Cut(n.takeCalls(), " eth0 ")
				confs = append(confs, conf)
				if !same(t, conf, strings.Replace(n.read("data/pod1"), `"flannelIfName":"eth0",`, "", 1)) {
					t.Errorf("%s saves %s", program, n.read("data/pod1"))
				}
				_ = os.Remove(n.path("data/pod1"))
			}
			if !same(t, confs[0], confs[1]) {
				t.Errorf("%v: upstream: %sthis plugin: %s", more, confs[0], confs[1])
			}
		}
	}
}
