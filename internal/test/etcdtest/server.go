// Package etcdtest runs a real etcd for a test. The test can stop, kill, pause,
// empty and restore etcd, which ends with the test and listens on loopback
// addresses only. Every method fails the test when something goes wrong; so they
// belong to the goroutine of the test.
package etcdtest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"flannel/internal/test/nettest"
)

// Server is an etcd whose address and data survive restarts.
type Server struct {
	t            testing.TB
	dir          string // a temporary one, for data, log, certificates and copies
	client, peer string // host:port for clients, and for other members, which etcd needs even alone
	tls          bool
	clientCerts  bool   // clients need a certificate
	password     string // of root; empty: no authentication
	flags        []string
	proc         *nettest.Process // the etcd that was started last
}

// Option changes how Start runs etcd.
type Option func(*Server)

// TLS makes etcd use TLS. Server.File returns the paths of the files.
func TLS() Option { return func(s *Server) { s.tls = true } }

// ClientCerts is like TLS, and clients need a certificate.
func ClientCerts() Option { return func(s *Server) { s.tls, s.clientCerts = true, true } }

// Password enables authentication and sets the password of the user root.
func Password(p string) Option { return func(s *Server) { s.password = p } }

// Flags adds command-line flags.
func Flags(flags ...string) Option { return func(s *Server) { s.flags = append(s.flags, flags...) } }

// Start runs etcd and waits until it answers. It ends with the test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), client: nettest.Address(t), peer: nettest.Address(t)}
	for _, o := range opts {
		o(s)
	}
	if s.tls {
		s.makeFiles() // certificates and keys
	}
	password := s.password
	s.password = "" // until authentication is enabled
	s.Start()
	if password != "" {
		c := s.Client()
		ctx := context.Background()
		s.check("add user root", second(c.UserAdd(ctx, "root", password)))
		s.check("grant role root", second(c.UserGrantRole(ctx, "root", "root")))
		s.check("enable authentication", second(c.AuthEnable(ctx)))
		s.password = password
	}
	return s
}

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }

// check fails the test if err is not nil.
func (s *Server) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("etcd: %s: %v\n%s", what, err, s.log())
	}
}

// Endpoint returns the URL for clients.
func (s *Server) Endpoint() string { return s.scheme() + "://" + s.client }

// Addr returns host and port for clients.
func (s *Server) Addr() string { return s.client }

func (s *Server) scheme() string {
	if s.tls {
		return "https"
	}
	return "http"
}

// Client returns a client with all rights, which is closed when the test ends.
func (s *Server) Client() *clientv3.Client {
	s.t.Helper()
	cfg := clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 10 * time.Minute, Logger: zap.NewNop()}
	if s.tls {
		cfg.TLS = s.clientTLS()
	}
	if s.password != "" {
		cfg.Username, cfg.Password = "root", s.password
	}
	c, err := clientv3.New(cfg)
	s.check("connect", err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// Start starts etcd again after Stop or Kill, with the same data and address,
// and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	url, peer := s.Endpoint(), "http://"+s.peer
	args := []string{"--name=test", "--data-dir=" + filepath.Join(s.dir, "data"), "--unsafe-no-fsync",
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url, "--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer, "--log-level=warn",
		"--heartbeat-interval=50", "--election-timeout=250", "--bcrypt-cost=4"} // faster than the defaults
	if s.tls {
		args = append(args, "--cert-file="+s.File("server.crt"), "--key-file="+s.File("server.key"))
	}
	if s.clientCerts {
		args = append(args, "--client-cert-auth", "--trusted-ca-file="+s.File("ca.crt"))
	}
	s.proc = nettest.Run(s.t, filepath.Join(s.dir, "log"), nettest.Tool(s.t, "etcd"), append(args, s.flags...)...)
	s.wait()
}

// wait waits until etcd has a leader and answers.
func (s *Server) wait() {
	s.t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) { // until it listens
		if conn, err := net.Dial("tcp", s.client); err == nil {
			conn.Close()
			break
		}
		select {
		case <-s.proc.Exited():
			s.t.Fatalf("etcd: exited during the start\n%s", s.log())
		default:
		}
		if time.Since(start) > 10*time.Minute {
			s.t.Fatalf("etcd: does not listen\n%s", s.log())
		}
	}
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	s.check("first request", second(c.Get(ctx, "etcdtest"))) // waits for a leader; the key need not exist
}

// Stop ends etcd with SIGTERM.
func (s *Server) Stop() { s.proc.Stop() }

// Kill ends etcd with SIGKILL.
func (s *Server) Kill() { s.proc.Kill() }

// Pause stops etcd with SIGSTOP. The kernel still accepts data on its
// connections, but nothing answers.
func (s *Server) Pause() { s.proc.Pause() }

// Resume continues etcd after Pause.
func (s *Server) Resume() { s.proc.Resume() }

// Wipe kills etcd and starts it with an empty store, without authentication.
func (s *Server) Wipe() {
	s.t.Helper()
	s.Kill()
	s.check("remove its data", os.RemoveAll(filepath.Join(s.dir, "data")))
	s.password = ""
	s.Start()
}

// Backup copies the data for Restore. etcd is stopped meanwhile. A test can call it once.
func (s *Server) Backup() {
	s.t.Helper()
	s.Stop()
	s.check("copy its data", os.CopyFS(filepath.Join(s.dir, "backup"), os.DirFS(filepath.Join(s.dir, "data"))))
	s.Start()
}

// Restore kills etcd and starts it with the data of Backup: the same cluster at an older
// revision.
func (s *Server) Restore() {
	s.t.Helper()
	s.Kill()
	s.check("remove its data", os.RemoveAll(filepath.Join(s.dir, "data")))
	s.check("copy its data back", os.CopyFS(filepath.Join(s.dir, "data"), os.DirFS(filepath.Join(s.dir, "backup"))))
	s.Start()
}

// Snapshot saves a snapshot of the store while etcd runs, as `etcdctl snapshot
// save` does.
func (s *Server) Snapshot() {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	from, err := c.Snapshot(ctx)
	s.check("request a snapshot", err)
	defer from.Close()
	to, err := os.Create(s.File("snapshot"))
	s.check("save the snapshot", err)
	defer to.Close()
	s.check("save the snapshot", second(io.Copy(to, from)))
}

// RestoreSnapshot kills etcd and starts it with the last Snapshot, in the way
// that etcd's manual prescribes for clusters with watches: the revision is
// raised by 10⁹, so that no revision is used twice, and the history is
// compacted.
func (s *Server) RestoreSnapshot() {
	s.t.Helper()
	s.Kill()
	data, peer := filepath.Join(s.dir, "data"), "http://"+s.peer
	s.check("remove its data", os.RemoveAll(data))
	out, err := exec.Command(nettest.Tool(s.t, "etcdutl"), "snapshot", "restore", s.File("snapshot"),
		"--data-dir="+data,
		"--name=test", "--initial-cluster=test="+peer, "--initial-advertise-peer-urls="+peer,
		"--bump-revision=1000000000", "--mark-compacted").CombinedOutput()
	if err != nil {
		s.t.Fatalf("etcdutl: %v\n%s", err, out)
	}
	s.Start()
}

// Compact deletes the history before the current revision.
func (s *Server) Compact() {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	resp, err := c.Get(ctx, "etcdtest")
	s.check("read the revision", err)
	s.check("compact", second(c.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())))
}

// File returns the path of ca.crt, server.crt, server.key, client.crt or
// client.key.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

// clientTLS returns the configuration of a client with a certificate.
func (s *Server) clientTLS() *tls.Config {
	pair, err := tls.LoadX509KeyPair(s.File("client.crt"), s.File("client.key"))
	s.check("load the client certificate", err)
	return &tls.Config{RootCAs: s.pool(), Certificates: []tls.Certificate{pair}}
}

// log returns the end of the output of etcd.
func (s *Server) log() string {
	if s.proc == nil {
		return ""
	}
	return s.proc.Log()
}
