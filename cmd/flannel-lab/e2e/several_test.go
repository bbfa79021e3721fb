package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// second is a second flanneld on a node, for another network, with a subnet
// file, prefix and VNI of its own.
type second struct {
	t    *testing.T
	l    *lab.Lab
	node *lab.Node
	cmd  *exec.Cmd
	at   netip.Addr // address of the node in its subnet
}

const secondFile = "--subnet-file=/run/flannel/second.env"

func configureSecond(t *testing.T, l *lab.Lab, backend string) {
	t.Helper()
	_, err := etcdClient(t, l).Put(t.Context(), "/second/config", `{"Network":"10.9.0.0/16","Backend":`+backend+`}`)
	must(t, err)
}

func (s *second) start() {
	s.t.Helper()
	s.launch()
	s.ready()
}

// launch is start without waiting.
func (s *second) launch() {
	s.t.Helper()
	s.cmd = exec.Command(s.l.Flanneld(), "-etcd-endpoints="+s.l.Etcd.Endpoint(), "-etcd-prefix=/second",
		"-iface="+lab.Uplink, "-ip-masq", secondFile, atOnce)
	must(s.t, s.node.Machine.Start(s.cmd))
	s.t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			s.end(syscall.SIGKILL)
		}
	})
}

func (s *second) ready() {
	s.t.Helper()
	within(s.t, "the second of "+s.node.Name+" is synced", func() error {
		return says(s.t, s.node, `"ready": true`, s.l.Flanneld(), secondFile, "status", "--json")
	})
}

func (s *second) end(signal syscall.Signal) {
	s.t.Helper()
	must(s.t, s.cmd.Process.Signal(signal))
	_ = s.cmd.Wait() // other tests check its status
}

// address gives the node the first address of the subnet, as a bridge would
// have it.
func (s *second) address() {
	s.t.Helper()
	subnet := strings.TrimSpace(in(s.t, s.node.Namespaces, "sed -n s/^FLANNEL_SUBNET=//p /run/flannel/second.env"))
	in(s.t, s.node.Namespaces, "ip link add second0 type veth peer name second1; ip link set second1 up; ip addr add "+subnet+" dev second0; ip link set second0 up")
	s.at = netip.MustParsePrefix(subnet).Addr()
}

// TestTwoNetworksOnEachHost runs two flannelds on each of two hosts. Whatever
// happens to one of them, the network of the other loses no packet.
func TestTwoNetworksOnEachHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, first, changed, second, secondChanged string }{
		{"vxlan", `{"Type":"vxlan"}`, `{"Type":"vxlan","VNI":5}`, `{"Type":"vxlan","VNI":2}`,
			`{"Type":"vxlan","VNI":3}`},
		{"host-gw", `{"Type":"host-gw"}`, `{"Type":"vxlan"}`, `{"Type":"host-gw"}`, `{"Type":"vxlan","VNI":2}`},
		{"nftables", `{"Type":"vxlan"},"EnableNFTables":true`, `{"Type":"host-gw"}`,
			`{"Type":"host-gw"},"EnableNFTables":true`, `{"Type":"host-gw"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 2}, c.first, atOnce)
			a, b := pair(t, l)
			configureSecond(t, l, c.second)
			seconds := []*second{{t: t, l: l, node: l.Nodes[0]}, {t: t, l: l, node: l.Nodes[1]}}
			for _, s := range seconds {
				s.start()
				s.address()
			}
			reachFromNode := func() {
				t.Helper()
				for i, s := range seconds {
					_, err := s.node.Reach(t.Context(), seconds[1-i].at, timeout)
					must(t, err)
				}
			}
			reachFromNode()
			reaches(t, "the first network", a, b.IP4)

			// Kill and reconfigure the second flannelds.
			stop := expectNoLoss(t, a, b.IP4)
			for _, s := range seconds {
				s.end(syscall.SIGKILL)
				s.start()
			}
			for _, config := range []string{c.secondChanged, c.second} {
				followed(t, l, secondFile, func() { configureSecond(t, l, config) })
				for _, s := range seconds {
					s.ready()
				}
				reachFromNode()
			}
			stop()

			// Kill and reconfigure the first flannelds.
			stop = expectNoLossFromNode(t, seconds)
			for _, n := range l.Nodes {
				must(t, n.Kill())
				must(t, n.Start(atOnce))
				must(t, n.Ready(t.Context()))
			}
			for _, config := range []string{c.changed, c.first} {
				followed(t, l, "", func() { must(t, l.SetConfig(t.Context(), l.Config(config))) })
				reaches(t, "the first network after a change", a, b.IP4)
			}
			for _, n := range l.Nodes {
				becomesReady(t, n)
			}
			stop()
			removeSeconds(t, l, seconds, a, b)
		})
	}
}

// followed calls configure and waits until both nodes have another backend, device or
// firewall: the passes that have changed it are over. flag selects the flannelds; "":
// the first ones.
func followed(t *testing.T, l *lab.Lab, flag string, configure func()) {
	t.Helper()
	config := func(n *lab.Node) (string, error) {
		out, err := try(t.Context(), n.Namespaces, "%s %s status --json || true", l.Flanneld(), flag)
		r := status.Report{Node: &status.Node{}}
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		all := fmt.Sprint(r.Node.Backend, r.Node.NFTables)
		for _, d := range r.Node.Devices {
			all += " " + d.Name
		}
		return all, err
	}
	before := map[*lab.Node]string{}
	for _, n := range l.Nodes {
		var err error
		before[n], err = config(n)
		must(t, err)
	}
	configure()
	for n, had := range before {
		within(t, n.Name+" follows", func() error {
			has, err := config(n)
			if err == nil && has == had {
				err = errors.New("it still has " + has)
			}
			return err
		})
	}
}

// removeSeconds ends the second flannelds and cleans up after them while the
// first ones run.
func removeSeconds(t *testing.T, l *lab.Lab, seconds []*second, a, b *lab.Pod) {
	t.Helper()
	reaches(t, "the first network", a, b.IP4)
	stop := expectNoLoss(t, a, b.IP4)
	for _, s := range seconds {
		s.end(syscall.SIGTERM)
		before := in(t, s.node.Namespaces, "ip -o link; ip route; ip nexthop; iptables-save; nft list tables")
		done := in(t, s.node.Namespaces, l.Flanneld()+" "+secondFile+" cleanup 2>&1")
		if !strings.Contains(done, "10.9.") || strings.Contains(done, "10.5.") ||
			strings.Contains(done, "flannel.1\n") {
			t.Errorf("cleanup of the second printed\n%s\nthe state before was\n%s", done, before)
		}
		if left := in(t, s.node.Namespaces, "ip route | grep -v second0; ip nexthop; iptables-save | grep -v ^#; nft list ruleset"); strings.Contains(left, "10.9.") {
			t.Errorf("left of the second:\n%s", left)
		}
		becomesReady(t, s.node)
	}
	stop()
}

// expectNoLossFromNode is like expectNoLoss for the second network.
func expectNoLossFromNode(t *testing.T, seconds []*second) (stop func()) {
	t.Helper()
	f, err := seconds[0].node.Flood(seconds[1].at, 200)
	must(t, err)
	return func() {
		t.Helper()
		if r, err := f.Stop(); err != nil || r.Lost > 0 {
			t.Errorf("the second network: %v (%v), longest outage %v", r, err, r.Outage)
		}
	}
}
