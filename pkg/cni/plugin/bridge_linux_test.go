package plugin

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
)

// The node gets another subnet while its bridge has an address of the former one. As long
// as it has, ADD and STATUS name the pods of the former subnet, and what to do.
func TestFormerBridge(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, c := range []struct {
			name, version, bridge string // bridge: "": the delegate's default
			former                string
			subnets               []string // the new ones
		}{
			{"IPv4", "0.3.1", "pods", envText, []string{"10.5.73.0/24"}},
			{"dual-stack", "1.1.0", "", dualText, []string{"10.5.73.0/24", "2001:cafe:42:2::/64"}},
		} {
			t.Run(c.name, func(t *testing.T) { useFormerBridge(t, c.version, c.bridge, c.former, c.subnets) })
		}
	})
}

func useFormerBridge(t *testing.T, version, bridge, former string, want []string) {
	former = strings.Replace(former, "1450", "1400", 1)
	m := newMachine(t, former)
	list, name := kubeFlannelList, "cni0"
	if bridge != "" {
		list, name = strings.Replace(list, `"hairpinMode"`, `"bridge":"`+bridge+`","hairpinMode"`, 1), bridge
	}
	m.configure(list, version)
	defer func() { _ = exec.Command("ip", "link", "delete", name).Run() }()
	runtime := func(pod string) *libcni.RuntimeConf {
		rt := m.runtime(pod)
		rt.Args = append(rt.Args, [2]string{"K8S_POD_NAMESPACE", "web"})
		return rt
	}
	for _, pod := range []string{"old1", "old2", "new"} {
		m.makeNetns(pod)
		defer m.deleteNetns(pod)
	}
	for _, pod := range []string{"old1", "old2"} {
		if _, err := m.add(t.Context(), runtime(pod)); err != nil {
			t.Fatal(err)
		}
	}
	env := strings.NewReplacer("10.5.72.1", "10.5.73.1", "42:1::1", "42:2::1").Replace(former)
	m.setEnv(env + "FLANNEL_FORMER_SUBNET=10.5.71.0/24,10.5.72.0/24\n")
	ownFormer := true    // whether the daemon corrects the bridge when the pods have gone
	var foreign []string // the addresses that it does not delete
	refused := func(what string, code uint, err error, names ...string) {
		t.Helper()
		var e *types.Error
		if !errors.As(err, &e) || e.Code != code || !logtest.Names(e.Msg, append(names, name)...) || !logtest.Names(e.Details, "spec.nodeName") ||
			logtest.Names(e.Details, "flanneld corrects") != ownFormer || logtest.Names(e.Details, "link delete") {
			t.Errorf("%s: %+v", what, err)
			return
		}
		for _, address := range append(slices.Clone(names), "10.5.72.1/24", "10.5.73.1/24") {
			isForeign := slices.Contains(foreign, address)
			if logtest.Names(e.Details, "delete "+address+" dev "+name) != isForeign {
				t.Errorf("%s: %q has a command for %s: %t", what, e.Details, address, !isForeign)
			}
		}
	}
	hasStatus := version == "1.1.0"
	add := func(names ...string) {
		t.Helper()
		_, err := m.add(t.Context(), runtime("new"))
		refused("ADD", 102, err, names...)
		m.must(m.cni.DelNetworkList(t.Context(), m.list, runtime("new")))
		if hasStatus {
			refused("STATUS", 50, m.cni.GetStatusNetworkList(t.Context(), m.list), names...)
		}
	}
	add("web/old1", "web/old2")
	for _, pod := range []string{"old1", "old2"} {
		m.must(m.cni.DelNetworkList(t.Context(), m.list, runtime(pod)))
	}
	add() // the daemon does not run
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	give := func(addresses ...string) {
		t.Helper()
		ip("addr", "flush", "dev", name, "scope", "global")
		for _, a := range addresses {
			ip("addr", "add", a, "dev", name)
		}
	}
	ownFormer = false
	const own, ofFormer, other = "10.5.73.1/24", "10.5.72.1/24", "10.88.0.1/16" // other: as of containerd's example
	for _, addresses := range [][]string{{other}, {"10.5.72.1/25"}, {ofFormer, other}, {other, own}, {other, ofFormer, own}} {
		give(addresses...)
		others := slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return a == own })
		foreign = slices.DeleteFunc(slices.Clone(others), func(a string) bool { return a == ofFormer })
		add(others...)
	}
	m.setEnv(env) // without a list
	give(ofFormer)
	foreign = []string{ofFormer}
	add(ofFormer)
	give(own, other) // the delegate finds its own before the other
	_, err := m.add(t.Context(), runtime("new"))
	m.must(err)
	m.must(m.cni.DelNetworkList(t.Context(), m.list, runtime("new")))
	if hasStatus {
		m.must(m.cni.GetStatusNetworkList(t.Context(), m.list))
	}
	ip("addr", "flush", "dev", name, "scope", "global") // as the daemon does
	if hasStatus {
		m.must(m.cni.GetStatusNetworkList(t.Context(), m.list))
	}
	addrs, err := m.add(t.Context(), runtime("new"))
	m.must(err)
	var got []string
	for _, a := range addrs {
		got = append(got, a.Masked().String())
	}
	if _, mtu := m.addrs("new"); !cmp.Equal(want, got) || mtu != 1400 {
		t.Errorf("in %v with an MTU of %d, want %v and 1400", got, mtu, want)
	}
	m.must(m.cni.DelNetworkList(t.Context(), m.list, runtime("new")))
}
