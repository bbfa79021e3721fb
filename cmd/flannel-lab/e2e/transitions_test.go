package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// likeHostGW is the example of extension in the documentation.
const likeHostGW = `{"Type":"extension","SubnetAddCommand":"ip route replace $SUBNET via $PUBLIC_IP","SubnetRemoveCommand":"ip route del $SUBNET via $PUBLIC_IP"}`

// allocOnly is a configuration with which pods of two nodes do not reach each other.
const allocOnly = `{"Type":"alloc"}`

// alike are configurations of the backends that need no module of the kernel.
// With each of them but allocOnly, pods of two nodes reach each other. One has
// the firewall in nftables, the others in iptables.
var alike = []string{`{"Type":"vxlan"}`, `{"Type":"host-gw"},"EnableNFTables":true`, `{"Type":"wireguard"}`, `{"Type":"udp"}`, likeHostGW, allocOnly}

// TestEveryBackendAfterEveryOther changes the backend of running nodes.
func TestEveryBackendAfterEveryOther(t *testing.T) {
	t.Parallel()
	changeAlong(t, amongAll(alike, len(alike)))
}

// amongAll returns a way from each of the first n configurations to each other one, and
// back.
func amongAll(all []string, n int) (way []string) {
	for i, c := range all[:n] {
		way = append(way, c)
		for _, other := range all[i+1:] {
			way = append(way, other, c)
		}
	}
	return way
}

// modulesParts is the number of parts of TestModulesAfterEveryOther. dist/kernels.sh has the names of its subtests.
const modulesParts = 3

// modulesWay returns the way of a part of TestModulesAfterEveryOther, which has a number from 0 on: from each of the
// configurations modules to each other one, and to the share of alike that belongs to this part, and back.
func modulesWay(part int, modules ...string) []string {
	all := slices.Clone(modules)
	for i, config := range alike {
		if i%modulesParts == part {
			all = append(all, config)
		}
	}
	return amongAll(all, len(modules))
}

func TestModulesWays(t *testing.T) {
	t.Parallel()
	modules := []string{"ipip", "ipsec"}
	found := map[[2]string]bool{}
	for part := range modulesParts {
		way := modulesWay(part, modules...)
		for i, config := range way[1:] {
			found[[2]string{way[i], config}] = true
		}
	}
	for _, module := range modules {
		for _, other := range slices.Concat(modules, alike) {
			if other != module && !(found[[2]string{module, other}] && found[[2]string{other, module}]) {
				t.Errorf("no part changes from %s to %s and back", module, other)
			}
		}
	}
}

// changeAlong changes the configuration of two running nodes, and checks that they
// have the same as nodes on which only this backend has run.
func changeAlong(t *testing.T, way []string) {
	t.Helper()
	l := start(t, lab.Options{Nodes: 2}, way[0])
	a, b := pair(t, l) // before anything is compared, since a guard knows the bridge of the pods
	remove := func(config string) {
		t.Helper()
		for _, n := range l.Nodes {
			stopped(t, n)
			in(t, n.Namespaces, l.Flanneld()+" cleanup 2>&1")
			if config == likeHostGW { // cleanup does not touch what commands made
				in(t, n.Namespaces, "ip route flush root 10.5.0.0/16 proto boot")
			}
		}
	}
	remove(way[0])
	fresh := map[string][]string{} // what the nodes have
	connected := func(c string) {
		t.Helper()
		if c != allocOnly {
			must(t, reach(t.Context(), a, b))
			must(t, reach(t.Context(), b, a))
		}
	}
	for _, c := range way {
		if fresh[c] != nil {
			continue
		}
		must(t, l.SetConfig(t.Context(), l.Config(c)))
		must(t, l.StartAll(t.Context(), atOnce))
		connected(c)
		for _, n := range l.Nodes {
			if c != allocOnly { // which has no peers
				hasPeers(t, n, 1)
			}
			has, err := belongings(t.Context(), n, "")
			must(t, err)
			fresh[c] = append(fresh[c], has)
		}
		remove(c)
	}
	must(t, l.SetConfig(t.Context(), l.Config(way[0])))
	must(t, l.StartAll(t.Context(), atOnce))
	for _, c := range way {
		must(t, l.SetConfig(t.Context(), l.Config(c)))
		for i, n := range l.Nodes {
			want := fresh[c][i]
			eventually(t, n.Name+" after a change to "+c, want, func(ctx context.Context) (string, error) { return belongings(ctx, n, want) })
		}
		connected(c)
	}
}

// belongings returns what backends make on a node: devices, entries of the
// kernel, peers of WireGuard, policies and keys of XFRM, the firewall, rules of
// routing, processes and UDP sockets.
//
// Of the keys it has the ends, not the numbers: two nodes that start to
// negotiate at the same time get two pairs of them, and each pair is replaced
// now and then. It has no acquires (SPI 0): the kernel adds one when a packet needs
// keys that are not there, as on a node whose peer has just left, and deletes it after
// minutes. It cannot be deleted alone. Counters of the firewall differ, too.
//
// If want is not "", it reads no more when the entries of the kernel are not those
// of want.
func belongings(ctx context.Context, n *lab.Node, want string) (string, error) {
	has, err := kernel(ctx, n)
	if err != nil || !strings.HasPrefix(want, has) && want != "" {
		return has, err
	}
	const section = "-- section --"
	out, err := try(ctx, n.Namespaces, `wg show all dump 2>/dev/null || true; echo %[1]s; ip -o xfrm state; echo %[1]s; ss -Hlun; echo %[1]s
		ip -o xfrm policy; ip rule; ip -6 rule; iptables-save; ip6tables-save; nft list tables
		nft list tables | while read -r table; do case $table in *flannel*) nft -s list $table; esac; done | %[2]s`, section, lab.WithoutSenders)
	if err != nil {
		return "", err
	}
	sections := strings.Split(out, section)
	var more []string
	for peer := range strings.Lines(sections[0]) {
		if f := strings.Fields(peer); len(f) == 9 {
			more = append(more, strings.Join([]string{f[0], f[1], f[2], f[3], f[4], f[8]}, " "))
		}
	}
	for state := range strings.Lines(sections[1]) {
		ends := keyNumbers.ReplaceAllString(strings.TrimSpace(state), "proto esp reqid $1")
		// In a negotiation there are states without an SPI, and some with one that is only reserved; ours have a reqid.
		if !strings.Contains(state, " spi 0x00000000 ") && !strings.HasSuffix(ends, " reqid 0") && !slices.Contains(more, ends) {
			more = append(more, ends)
		}
	}
	for socket := range strings.Lines(sections[2]) {
		if f := strings.Fields(socket); len(f) > 3 {
			more = append(more, f[3])
		}
	}
	for line := range strings.Lines(sections[3]) {
		if !strings.HasPrefix(line, "#") {
			more = append(more, ruleCounters.ReplaceAllString(line, ""))
		}
	}
	err = n.Do(func() error {
		names, err := processesAndFiles()
		more = append(more, names...)
		return err
	})
	return has + "\n" + words(strings.Join(more, "\n")), err
}

var (
	keyNumbers   = regexp.MustCompile(`proto esp spi .* reqid (\d+) .*`)
	ruleCounters = regexp.MustCompile(`\[\d+:\d+\]`)
)

// processesAndFiles returns the names of the programs that backends start, and the
// paths of their files. The caller is in the node.
func processesAndFiles() (names []string, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, comm := range processes {
		name, _ := os.ReadFile(comm) // it may have ended
		if strings.Contains(string(name), "wireguard-go") || strings.Contains(string(name), "charon") {
			names = append(names, string(name))
		}
	}
	for _, pattern := range []string{"/run/wireguard/*", "/run/flannel/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, slices.DeleteFunc(files, func(file string) bool { return strings.Contains(file, "wgkey") })...)
	}
	return names, nil
}
