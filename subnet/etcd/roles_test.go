package etcd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/nettest"
	"flannel/pkg/conf"
)

// recipe is the shell code of the page on securing etcd: for the cluster, for a node, and to remove a node.
func recipe(t *testing.T) (cluster, node, remove string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(nettest.Root(t), "Documentation", "etcd-security.md"))
	must(t, err)
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 3 {
		t.Fatalf("the page has %d blocks of shell code, want 3", len(blocks))
	}
	return blocks[0][1], blocks[1][1], blocks[2][1]
}

// secured is an etcd with two nodes, node-a and node-b, set up as the page says.
func secured(t *testing.T) *etcdtest.Server {
	t.Helper()
	srv := etcdtest.Start(t)
	cluster, a, _ := recipe(t)
	b := strings.NewReplacer("node-a", "node-b", "NODE_A", "NODE_B", "10.5.1.0", "10.5.2.0", "64.1", "64.2").Replace(a)
	shell(t, srv, cluster+a+b)
	return srv
}

func shell(t *testing.T, srv *etcdtest.Server, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-eu", "-c", script)
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+srv.Endpoint(), "ROOT_PASSWORD=root's", "NODE_A_PASSWORD=a's", "NODE_B_PASSWORD=b's",
		"PATH="+filepath.Dir(nettest.Tool(t, "etcdctl"))+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// as connects with a user's rights.
func as(t *testing.T, srv *etcdtest.Server, user, password string) store {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, Username: user, Password: password,
		DialTimeout: time.Minute, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return store{c, t}
}

func login(user, password string) func(*Options) {
	return func(o *Options) { o.Username, o.Password = user, conf.NewSecret(password) }
}

// With one user per node, each holds its own lease and sees the others'; a compromised one can change nobody else's.
func TestPerNodeRoles(t *testing.T) {
	t.Parallel()
	srv := secured(t)
	root, rogue := as(t, srv, "root", "root's"), as(t, srv, "node-a", "a's")
	root.put("config", "{}")
	a, b := start(t, srv.Endpoint(), login("node-a", "a's")), start(t, srv.Endpoint(), login("node-b", "b's"))
	la, lb := a.publish(at("192.168.64.1"), mac1), b.publish(at("192.168.64.2"), mac1)
	a.Run()
	b.Run()
	a.Sees("10.5.2.0-24")
	b.Sees("10.5.1.0-24")
	config := make(chan string, 1)
	go a.WatchConfig(t.Context(), func(raw []byte) { config <- string(raw) })
	if got := <-config; got != "{}" {
		t.Errorf("configuration %q", got)
	}
	if raw, id := root.value(la.Name); raw != peer("192.168.64.1") || id != clientv3.NoLease || root.etcdLeases() != 0 {
		t.Errorf("%s on etcd lease %x; %d etcd leases", raw, id, root.etcdLeases())
	}
	root.put("subnets/10.5.1.0-24", "garbage") // it may restore its own
	eventually.True(t, "restored", func() bool { raw, _ := root.value(la.Name); return raw == peer("192.168.64.1") })

	grant, err := root.Grant(t.Context(), 3600) // of a node that leased a free subnet
	must(t, err)
	root.put("subnets/10.5.3.0-24", peer("192.168.64.3"), clientv3.WithLease(grant.ID))
	for what, do := range map[string]func(context.Context) error{
		"write another's lease":  func(ctx context.Context) error { _, err := rogue.Put(ctx, lb.Name, peer("192.168.64.1")); return err },
		"delete another's lease": func(ctx context.Context) error { _, err := rogue.Delete(ctx, lb.Name); return err },
		"delete all leases": func(ctx context.Context) error {
			_, err := rogue.Delete(ctx, base+"/subnets/", clientv3.WithPrefix())
			return err
		},
		"add a lease": func(ctx context.Context) error {
			_, err := rogue.Put(ctx, base+"/subnets/10.5.9.0-24", "{}")
			return err
		},
		"change the network":     func(ctx context.Context) error { _, err := rogue.Put(ctx, base+"/config", "{}"); return err },
		"revoke another's lease": func(ctx context.Context) error { _, err := rogue.Revoke(ctx, grant.ID); return err },
		"attach to another's lease": func(ctx context.Context) error {
			_, err := rogue.Put(ctx, la.Name, peer("192.168.64.1"), clientv3.WithLease(grant.ID))
			return err
		},
		"write another's lease in a transaction": func(ctx context.Context) error {
			_, err := rogue.Txn(ctx).Then(clientv3.OpPut(la.Name, "{}"), clientv3.OpDelete(lb.Name)).Commit()
			return err
		},
	} {
		if err := do(t.Context()); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s: %v, want permission denied", what, err)
		}
	}
	b.Sees("10.5.1.0-24 10.5.3.0-24")
	a.notLost()
	b.notLost()
	_, _, remove := recipe(t)
	shell(t, srv, `export ETCDCTL_USER="root:$ROOT_PASSWORD"`+"\n"+remove)
	b.Sees("10.5.3.0-24")
	a.lost(time.Minute)
}

// What etcd refuses is told with the key and the command that grants it, by the error or in the log of a wait.
func TestPermissionDeniedIsExplained(t *testing.T) {
	t.Parallel()
	srv := secured(t)
	root := as(t, srv, "root", "root's")
	a := start(t, srv.Endpoint(), login("node-a", "a's"))
	// Its address is in no reservation, and it may write no free key.
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var denied *deniedError
	root.leavesNone("a claim that is denied", func() {
		_, err := a.Acquire(soon, tenNet, outOfTheWay("192.168.64.77"))
		if !errors.As(err, &denied) || *denied != (deniedError{User: "node-a", Need: "readwrite", Key: base + "/subnets/10.5.250.0-24"}) {
			t.Errorf("claim: %v", err)
		}
	})
	// It may no longer write its own key.
	l := a.acquire(at("192.168.64.1"))
	_, err := root.RoleRevokePermission(t.Context(), "flannel-node-a", base+"/subnets/10.5.1.0-24", "")
	must(t, err)
	_, err = a.Acquire(soon, tenNet, at("192.168.64.1"))
	if !errors.As(err, &denied) || *denied != (deniedError{User: "node-a", Need: "readwrite", Key: l.Name}) {
		t.Errorf("a reservation that it may not write: %v", err)
	}
	filed := at("192.168.64.1")
	filed.V4.Subnet = l.V4.Subnet
	l = a.acquire(filed)
	l.Backend, l.V4.Data = "vxlan", []byte(mac1)
	ctx, cancel := context.WithCancel(t.Context())
	published := make(chan error)
	go func() { published <- a.Publish(ctx, l) }()
	eventually.True(t, "it says what it may not write", func() bool {
		return len(a.logs.With().Naming("error", "grant-permission ROLE readwrite "+l.Name)) > 0
	})
	cancel()
	<-published
	// It may no longer read the leases.
	_, err = root.RoleRevokePermission(t.Context(), "flannel-read", base+"/subnets/", clientv3.GetPrefixRangeEnd(base+"/subnets/"))
	must(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	go func() { _, err := a.Acquire(ctx, tenNet, at("192.168.64.1")); published <- err }()
	eventually.True(t, "it says what it may not read", func() bool {
		return len(a.logs.With().Naming("error", "grant-permission ROLE --prefix=true read "+base+"/subnets/")) > 0
	})
	cancel()
	<-published
	if wrong := a.logs.With("cause=store-silent").Naming("error", "grant-permission"); len(wrong) > 0 {
		t.Errorf("a refusal is taken for an outage: %s", wrong)
	}
}

// A password that would cross the network unencrypted is warned of, once, with the endpoint.
func TestPasswordOverHTTP(t *testing.T) {
	t.Parallel()
	plain, secure := etcdtest.Start(t, etcdtest.Password("secret")), etcdtest.Start(t, etcdtest.TLS(), etcdtest.Password("secret"))
	for _, c := range []struct {
		name  string
		srv   *etcdtest.Server
		user  string
		warns int
	}{{"http with a password", plain, "root", 1}, {"http without", plain, "", 0}, {"https with a password", secure, "root", 0}} {
		n := start(t, c.srv.Endpoint(), func(o *Options) {
			if o.CAFile = ""; c.srv == secure {
				o.CAFile = secure.File("ca.crt")
			}
			if o.Username = c.user; c.user != "" {
				o.Password = conf.NewSecret("secret")
			}
		})
		if got := n.logs.Count("level=WARN"); got != c.warns || c.warns > 0 && n.logs.Count("endpoint="+c.srv.Endpoint()) != 1 {
			t.Errorf("%s: %s", c.name, n.logs)
		}
	}
}
