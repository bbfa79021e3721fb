package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/cmd/flannel-lab/lab"
)

// foreignClaim returns the key of the first subnet of a network, which sorts before
// almost every other one, and the value of a node with the address of n.
func foreignClaim(t *testing.T, n *lab.Node) (key, value string) {
	t.Helper()
	env, err := n.SubnetEnv()
	must(t, err)
	network, err := netip.ParsePrefix(env["FLANNEL_NETWORK"])
	must(t, err)
	base := network.Addr().As4()
	own, err := netip.ParsePrefix(env["FLANNEL_SUBNET"])
	must(t, err)
	if base[2]++; own.Contains(netip.AddrFrom4(base)) {
		base[2]++
	}
	return fmt.Sprintf("%s-24", netip.AddrFrom4(base)), fmt.Sprintf(
		`{"PublicIP":"%s","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:0b:ad"}}`, n.IP4)
}

// conflictShown returns an error unless /readyz answers 200 and flanneld status
// has a row for the conflict, both with the key, or neither if key is "".
func conflictShown(t *testing.T, l *lab.Lab, n *lab.Node, key string) error {
	code, body, err := n.Ask(t.Context(), "/readyz")
	if err != nil {
		return err
	}
	text, err := n.Run(t.Context(), l.Flanneld(), "status")
	if err != nil {
		return err
	}
	shown := strings.Contains(body, "warning: ") && strings.Contains(body, key) && strings.Contains(text, "\nconflict ")
	if code != 200 || shown != (key != "") {
		return fmt.Errorf("/readyz: %d %s\nstatus:\n%s", code, body, text)
	}
	return nil
}

// A node with a subnet file and a lease restarts, while another key that sorts
// earlier has its address. It keeps its subnet, its pods keep their connections,
// and the conflict is reported, also one that appears while the node runs.
func TestForeignKeyMovesNobody(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`)
	c, n := etcdClient(t, l), l.Nodes[0]
	b, a := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	before, err := n.SubnetEnv()
	must(t, err)
	key, value := foreignClaim(t, n)
	_, err = c.Put(t.Context(), subnetKeys+key, value)
	must(t, err)
	within(t, "the conflict is shown", func() error { return conflictShown(t, l, n, key) })
	logged(t, n, 0, "cause=address-conflict")

	stop := expectNoLoss(t, a, b.IP4)
	for what, end := range map[string]func(){
		"a restart": func() { stopped(t, n) },
		"kill -9":   func() { must(t, n.Kill()) },
	} {
		end()
		mark := len(n.Log())
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
		if after, err := n.SubnetEnv(); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("after %s, the subnet file is %v, before %v (%v)", what, after, before, err)
		}
		once(t, n, mark, "cause=several-leases")
		within(t, "the conflict is shown after "+what, func() error { return conflictShown(t, l, n, key) })
	}
	stop()
	_, err = c.Delete(t.Context(), subnetKeys+key)
	must(t, err)
	within(t, "the conflict is over", func() error { return conflictShown(t, l, n, "") })
}

// With one etcd user per node, a compromised node writes the address of another
// one into its own key. After a boot, without a subnet file, that node still
// gets the subnet that its own user may write.
func TestCompromisedNodeMovesNobody(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 2, EtcdArgs: []string{"--bcrypt-cost=4"}})
	victim, rogue := l.Nodes[0], l.Nodes[1]
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	keys := map[*lab.Node]string{rogue: "10.5.1.0-24", victim: "10.5.200.0-24"}
	admin := perNodeUsers(t, l, keys)
	for n := range keys {
		n.Env = []string{"FLANNELD_ETCD_PASSWORD=" + rightPassword}
		must(t, n.Start("-etcd-username="+n.Name))
		must(t, n.Ready(t.Context()))
	}
	b, a := pair(t, l)
	reaches(t, "at first", a, b.IP4)
	before, err := victim.SubnetEnv()
	must(t, err)

	stopped(t, rogue) // which would restore its key
	_, value := foreignClaim(t, victim)
	cfg := l.Etcd.ClientConfig()
	cfg.Username, cfg.Password = rogue.Name, rightPassword
	c, err := clientv3.New(cfg)
	must(t, err)
	defer c.Close() //nolint:errcheck // the end of a test
	_, err = c.Put(t.Context(), subnetKeys+keys[rogue], value)
	must(t, err)
	for what, lose := range map[string]string{"a restart": "true", "the loss of the subnet file": "rm /run/flannel/subnet.env"} {
		must(t, victim.Kill())
		in(t, victim.Namespaces, lose)
		mark := len(victim.Log())
		must(t, victim.Start("-etcd-username="+victim.Name))
		must(t, victim.Ready(t.Context()))
		if after, err := victim.SubnetEnv(); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("after %s, the subnet file is %v, before %v (%v)", what, after, before, err)
		}
		once(t, victim, mark, "cause=several-leases")
		within(t, "the conflict is shown after "+what, func() error { return conflictShown(t, l, victim, keys[rogue]) })
		if denied := victim.Records(mark).With("cause=store-refuses"); len(denied) > 0 {
			t.Errorf("after %s: %s", what, denied)
		}
	}
	// The key of the victim is untouched, and the rogue's node is one again when it returns.
	resp, err := admin.Get(t.Context(), subnetKeys+keys[victim])
	must(t, err)
	if !strings.Contains(string(resp.Kvs[0].Value), victim.IP4.String()) {
		t.Errorf("the key of %s is %s", victim.Name, resp.Kvs[0].Value)
	}
}

// perNodeUsers makes a reservation and a user for each node, which is named like
// the node, as Documentation/etcd-security.md says, and enables authentication.
// It returns a client of root.
func perNodeUsers(t *testing.T, l *lab.Lab, keys map[*lab.Node]string) *clientv3.Client {
	t.Helper()
	c := etcdClient(t, l)
	ctx, read, write := t.Context(), clientv3.PermissionType(clientv3.PermRead), clientv3.PermissionType(clientv3.PermReadWrite)
	user := func(name string, roles ...string) {
		_, err := c.UserAdd(ctx, name, rightPassword)
		must(t, err)
		for _, role := range roles {
			_, err := c.UserGrantRole(ctx, name, role)
			must(t, err)
		}
	}
	role := func(name, key, end string, permission clientv3.PermissionType) {
		_, err := c.RoleAdd(ctx, name)
		must(t, err)
		_, err = c.RoleGrantPermission(ctx, name, key, end, permission)
		must(t, err)
	}
	user("root", "root")
	role("flannel-read", strings.TrimSuffix(subnetKeys, "subnets/"), clientv3.GetPrefixRangeEnd(subnetKeys), read)
	for n, key := range keys {
		_, err := c.Put(ctx, subnetKeys+key, fmt.Sprintf(`{"PublicIP":"%s"}`, n.IP4))
		must(t, err)
		role("flannel-"+n.Name, subnetKeys+key, "", write)
		user(n.Name, "flannel-read", "flannel-"+n.Name)
	}
	_, err := c.AuthEnable(ctx)
	must(t, err)
	cfg := l.Etcd.ClientConfig()
	cfg.Username, cfg.Password = "root", rightPassword
	root, err := clientv3.New(cfg)
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}
