package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nettest"
	"flannel/pkg/conf"
	"flannel/subnet"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	srv, strict := etcdtest.Start(t, etcdtest.TLS()), etcdtest.Start(t, etcdtest.ClientCerts())
	for _, c := range []struct {
		name string
		srv  *etcdtest.Server
		opts Options
		why  error // when it cannot connect
	}{
		{"CA only", srv, Options{CAFile: srv.File("ca.crt")}, nil},
		{"client certificate", strict, Options{CAFile: strict.File("ca.crt"), CertFile: strict.File("client.crt"), KeyFile: strict.File("client.key")}, nil},
		{"client certificate missing", strict, Options{CAFile: strict.File("ca.crt")}, errCertWanted},
		{"wrong CA", srv, Options{CAFile: strict.File("ca.crt")}, x509.UnknownAuthorityError{}},
		{"system's CA", srv, Options{}, x509.UnknownAuthorityError{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			configure := func(o *Options) { o.CAFile, o.CertFile, o.KeyFile = c.opts.CAFile, c.opts.CertFile, c.opts.KeyFile }
			n := start(t, c.srv.Endpoint(), configure)
			if c.why == nil {
				n.publish(at("192.168.64.3"), mac1)
				return
			}
			// The one line about an outage has what is known after the first attempt: nothing, if the handshake takes longer.
			for began := time.Now(); ; n = start(t, c.srv.Endpoint(), configure) {
				ctx, cancel := context.WithCancel(t.Context())
				failed := make(chan error)
				go func() { _, err := n.Acquire(ctx, tenNet, at("192.168.64.3")); failed <- err }()
				eventually.True(t, "it says that it waits", func() bool { return n.logs.Count() > 0 })
				cancel()
				if err := <-failed; err == nil {
					t.Error("it got a lease")
				}
				if n.logs.Count() != 1 {
					t.Errorf("log:\n%s", n.logs)
				}
				if len(n.logs.With().Naming("error", c.why.Error())) == 1 {
					break
				} else if time.Since(began) > soon {
					t.Fatalf("it does not say why it waits:\n%s", n.logs)
				}
			}
		})
	}
}

// A proxy before etcd asks for a client certificate, and does without one. Later errors do not say that it is missing.
func TestOptionalCertificate(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.TLS())
	addr := proxyTLS(t, srv)
	n := start(t, "https://"+addr, func(o *Options) { short(o); o.CAFile = srv.File("ca.crt") })
	n.publish(outOfTheWay("192.168.64.3"), mac1)
	n.Run()
	n.Sees("")
	srv.Kill()
	eventually.True(t, "the outage is noticed", func() bool { return n.logs.Count("cause=store-silent") > 0 })
	if err := n.outage.Err(); err == nil || errors.Is(err, errCertWanted) {
		t.Errorf("in the outage: %v", err)
	}
}

// proxyTLS runs a proxy before srv that ends TLS, with the certificate of srv, and asks clients for theirs.
func proxyTLS(t *testing.T, srv *etcdtest.Server) (addr string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(srv.File("server.crt"), srv.File("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ := strings.Cut(srv.Addr(), ":") // for which the certificate is
	http2 := []string{"h2"}
	l, err := tls.Listen("tcp", host+":0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, NextProtos: http2})
	if err != nil {
		t.Fatal(err)
	}
	var conns subnet.Conns
	t.Cleanup(func() {
		_ = l.Close()
		conns.Drop()
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			kept := conns.Keep(client)
			go func() {
				defer kept.Close()
				_ = client.(*tls.Conn).HandshakeContext(t.Context()) // also if there is no server
				server, err := tls.Dial("tcp", srv.Addr(), &tls.Config{InsecureSkipVerify: true, NextProtos: http2})
				if err != nil {
					return
				}
				go func() { io.Copy(server, kept); server.Close() }()
				io.Copy(kept, server)
			}()
		}
	}()
	return l.Addr().String()
}

// A client certificate that is renewed on disk is used for the next connection.
func TestCertificateRotation(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.ClientCerts())
	dir := t.TempDir()
	move := func(from, to string) {
		text, err := os.ReadFile(srv.File(from))
		if err == nil {
			err = os.WriteFile(dir+"/"+to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	move("ca.crt", "crt") // no good: not a client's
	move("ca.key", "key")
	n := start(t, srv.Endpoint(), func(o *Options) { o.CAFile, o.CertFile, o.KeyFile = srv.File("ca.crt"), dir+"/crt", dir+"/key" })
	move("client.crt", "crt")
	move("client.key", "key")
	n.acquire(at("192.168.64.3"))
}

// A CA file that is replaced is used for the next connection. While it has no certificate, the former CA is trusted.
func TestCARotation(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.TLS())
	ca := t.TempDir() + "/ca.crt"
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(ca, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := func() {
		t.Helper()
		text, err := os.ReadFile(srv.File("ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		write(text)
	}
	replace()
	n := start(t, srv.Endpoint(), func(o *Options) { o.CAFile = ca })
	n.publish(outOfTheWay("192.168.64.3"), mac1)
	n.Run()
	n.Sees("")

	srv.ReplaceCA()
	eventually.True(t, "the new CA is not trusted yet", func() bool {
		err := n.outage.Err()
		return err != nil && strings.Contains(err.Error(), x509.UnknownAuthorityError{}.Error())
	})
	replace()
	outside(t, srv).put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24")

	write(nil)
	n.Redial()
	outside(t, srv).remove("subnets/10.5.2.0-24")
	n.Sees("")
	srv.ReplaceCA()
	eventually.True(t, "the error names the empty file", func() bool {
		err := n.outage.Err()
		return err != nil && strings.Contains(err.Error(), ca)
	})
	replace()
	outside(t, srv).put("subnets/10.5.3.0-24", peer("192.168.64.4"))
	n.Sees("10.5.3.0-24")
	n.notLost()
}

func TestOptions(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.TLS())
	empty := t.TempDir() + "/empty"
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    Options
		is   error
		says []string // names and values
	}{
		{"no endpoint", Options{Endpoints: []string{" "}}, errNoEndpoint, nil},
		{"user in the URL", Options{Endpoints: []string{"http://root:hunter2@127.0.0.1:2379"}}, errUserInURL, nil},
		{"no CA file", Options{CAFile: "/nowhere/ca.crt"}, fs.ErrNotExist, []string{"CA file", "/nowhere/ca.crt"}},
		{"CA file without certificate", Options{CAFile: empty}, nil, []string{empty}},
		{"key only", Options{KeyFile: srv.File("client.key")}, nil, []string{"client.key"}},
		{"certificate only", Options{CertFile: srv.File("client.crt")}, nil, []string{"client.crt"}},
		{"no key file", Options{CertFile: srv.File("client.crt"), KeyFile: "/nowhere/key"}, fs.ErrNotExist, []string{"/nowhere/key"}},
		{"not each other's", Options{CertFile: srv.File("client.crt"), KeyFile: srv.File("server.key")}, nil, []string{"server.key"}},
	} {
		if c.o.Endpoints == nil {
			c.o.Endpoints = []string{srv.Endpoint()}
		}
		_, err := New(t.Context(), c.o)
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !logtest.Names(err.Error(), c.says...) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %v and %q", c.name, err, c.is, c.says)
		}
	}
}

// The password opens the store, and appears in no log and no error: not when it is wrong, not in an outage.
func TestPassword(t *testing.T) {
	t.Parallel()
	const right, wrong = "correct-horse", "battery-staple"
	srv := etcdtest.Start(t, etcdtest.Password(right))
	n := start(t, srv.Endpoint(), func(o *Options) { o.Username, o.Password = "root", conf.NewSecret(right) })
	n.publish(outOfTheWay("192.168.64.3"), mac1)
	n.Run()
	n.Sees("")
	srv.Kill()
	eventually.True(t, "the outage is noticed", func() bool { return n.logs.Count("cause=store-silent") > 0 })
	srv.Start() // tokens are forgotten by a restart
	st := outside(t, srv)
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24")
	l := n.acquire(at("192.168.64.3"))
	l.V4.PublicIP = addr("192.168.64.4")
	if err := n.Publish(t.Context(), l); err != nil {
		t.Error(err)
	}
	n.notLost()

	bad := &logtest.Log{}
	_, err := New(t.Context(), Options{Endpoints: []string{srv.Endpoint()}, Username: "root", Password: conf.NewSecret(wrong),
		Log: slog.New(slog.NewTextHandler(bad, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if !errors.Is(err, ErrLogin) || !logtest.Names(err.Error(), `"root"`) {
		t.Errorf("wrong password: %v", err)
	}
	none := start(t, srv.Endpoint(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := make(chan error)
	go func() { _, err := none.Acquire(ctx, tenNet, at("192.168.64.3")); refused <- err }()
	eventually.True(t, "it says what it lacks", func() bool { return len(none.logs.With().Naming("error", rpctypes.ErrUserEmpty.Error())) > 0 })
	cancel()
	if err := <-refused; err == nil || len(none.logs.With().Naming("error", rpctypes.ErrUserEmpty.Error())) != 1 {
		t.Errorf("no user: %v\n%s", err, none.logs)
	}
	if everything := n.logs.String() + bad.String() + err.Error(); strings.Contains(everything, right) || strings.Contains(everything, wrong) {
		t.Errorf("a password appears:\n%s", everything)
	}
}

// etcd that is away at the start is waited for, with or without a login, until ctx ends.
func TestAwayAtTheStart(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Password("secret"))
	srv.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // nobody answers
	defer cancel()
	login := Options{Endpoints: []string{srv.Endpoint()}, Username: "root", Password: conf.NewSecret("secret")}
	if _, err := New(ctx, login); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("New returned %v", err)
	}
	logs := &logtest.Log{}
	login.Log = logs.Logger()
	made := make(chan *Manager, 1)
	go func() {
		m, err := New(t.Context(), login)
		if err != nil {
			t.Errorf("New: %v", err)
		}
		made <- m
	}()
	eventually.True(t, "it says that it waits", func() bool { return logs.Count("cause=store-silent") > 0 })
	srv.Start()
	m := <-made
	if m == nil {
		return
	}
	t.Cleanup(func() { m.Close() })
	if _, err := m.Acquire(t.Context(), tenNet, at("192.168.64.3")); err != nil {
		t.Errorf("Acquire: %v", err)
	}
}

// One of several endpoints is enough.
func TestSeveralEndpoints(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	dead := nettest.NewProxy(t, srv.Addr(), 0)
	dead.BlackHole(true)
	n := start(t, "http://127.0.0.1:1", func(o *Options) { o.Endpoints = append(o.Endpoints, "http://"+dead.Addr(), srv.Endpoint()) })
	n.publish(outOfTheWay("192.168.64.3"), mac1)
	n.Run()
	n.Sees("")
}

// A user that may touch nothing but our prefix is enough.
func TestRestrictedUser(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Password("secret"))
	st := outside(t, srv)
	role := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := st.RoleAdd(t.Context(), "flannel")
	role(err)
	_, err = st.RoleGrantPermission(t.Context(), "flannel", base+"/", clientv3.GetPrefixRangeEnd(base+"/"), clientv3.PermissionType(clientv3.PermReadWrite))
	role(err)
	_, err = st.UserAdd(t.Context(), "flannel", "hunter2")
	role(err)
	_, err = st.UserGrantRole(t.Context(), "flannel", "flannel")
	role(err)
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n := start(t, srv.Endpoint(), func(o *Options) { short(o); o.Username, o.Password = "flannel", conf.NewSecret("hunter2") })
	l := n.publish(outOfTheWay("192.168.64.3"), mac1)
	n.Run()
	n.Sees("10.5.2.0-24")
	_, id := st.value(l.Name)
	st.renewed(id, 1)
	st.remove("subnets/10.5.2.0-24")
	n.Sees("")
	n.notLost()
	if raw, _ := st.value(l.Name); raw != peer("192.168.64.3") || n.logs.Count("cause=store-refuses") != 0 {
		t.Errorf("%s\n%s", raw, n.logs)
	}
}

// Whatever etcd does, all that runs ends with its context.
func TestEndsInABlackHole(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	proxy := nettest.NewProxy(t, srv.Addr(), 0)
	n := start(t, "http://"+proxy.Addr(), short)
	l := n.publish(outOfTheWay("192.168.64.3"), mac1)
	stop := n.Run()
	n.Sees("")
	proxy.BlackHole(true)
	eventually.True(t, "requests are under way", func() bool { return n.logs.Count("cause=store-silent") > 0 })
	eventually.True(t, "the error names the endpoint", func() bool {
		err := n.outage.Err()
		return err != nil && logtest.Names(err.Error(), proxy.Addr())
	})
	l.V4.Data = []byte(mac2)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // nobody answers
	defer cancel()
	if err := n.Publish(ctx, l); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish: %v", err)
	}
	stop()
	if err := <-n.Held; err != nil {
		t.Errorf("Hold: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
